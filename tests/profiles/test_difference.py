"""Two profiles kernel by kernel: everything adds up, what is new or gone is said, unlike profiles are pointed out."""

from pathlib import Path

import pytest
from export_maker import Content, Kernel, Launch, Range, make_export

from harness.errors import ProfileError
from harness.profiles.difference import Match, compare
from harness.profiles.model import Profile
from harness.profiles.nsys_reader import read_export
from harness.profiles.report import difference_headline, difference_table, terminal

DECODE = "execute_context_0(0)_generation_8(8)"


def _profile(folder: Path, label: str, *kernels: Kernel, steps: int = 1) -> Profile:
    content = Content(
        kernels=kernels,
        launches=[Launch(10 + 100 * step, step + 1) for step in range(steps)],
        ranges=[Range(100 * step, 100 * step + 50, DECODE) for step in range(steps)],
    )
    return read_export(make_export(folder / f"{label}.sqlite", content), label=label)


def test_rows_and_overlap_add_up_to_the_change_of_busy_time(tmp_path: Path) -> None:
    before = _profile(tmp_path, "base", Kernel(0, 100, "a"), Kernel(50, 200, "b"), Kernel(300, 310, "old"))
    after = _profile(tmp_path, "new", Kernel(0, 60, "a"), Kernel(60, 210, "b"), Kernel(400, 405, "fused"))
    difference = compare(before, after)
    assert difference.busy_change_ns == 215 - 210
    assert difference.overlap_change_ns == 50
    assert {pair.name: (pair.match, pair.change_ns) for pair in difference.pairs} == {
        "a": (Match.BOTH, -40),
        "b": (Match.BOTH, 0),
        "old": (Match.VANISHED, -10),
        "fused": (Match.NEW, 5),
    }
    assert sum(pair.change_ns for pair in difference.pairs) + difference.overlap_change_ns == difference.busy_change_ns


def test_names_of_two_builds_match(tmp_path: Path) -> None:
    before = _profile(
        tmp_path, "base", Kernel(0, 100, "void ns::decode<(int)8>(int)"), Kernel(200, 210, "triton_poi_fused_add_3")
    )
    after = _profile(
        tmp_path, "new", Kernel(0, 50, "void ns::decode<(int)16>(int)"), Kernel(200, 210, "triton_poi_fused_add_5")
    )
    assert {(pair.name, pair.match) for pair in compare(before, after).pairs} == {
        ("ns::decode", Match.BOTH),
        ("triton_poi_fused_add", Match.BOTH),
    }


def test_the_mean_changes_and_calls_are_kept(tmp_path: Path) -> None:
    before = _profile(tmp_path, "base", Kernel(0, 100, "a"), Kernel(200, 300, "a"))
    after = _profile(tmp_path, "new", Kernel(0, 90, "a"))
    (pair,) = compare(before, after).pairs
    assert (pair.calls, pair.total_ns) == ((2, 1), (200, 90))
    assert pair.mean_change == pytest.approx(-0.1)


def test_gpus_are_matched_by_place(tmp_path: Path) -> None:
    before = _profile(tmp_path, "base", Kernel(0, 100, "a", device=0))
    after = _profile(tmp_path, "new", Kernel(0, 90, "a", device=5))
    assert [pair.match for pair in compare(before, after).pairs] == [Match.BOTH]


def test_other_numbers_of_gpus_are_refused(tmp_path: Path) -> None:
    before = _profile(tmp_path, "base", Kernel(0, 100, "a"))
    after = _profile(tmp_path, "new", Kernel(0, 100, "a"), Kernel(0, 100, "a", device=1))
    with pytest.raises(ProfileError, match=r"base ran on 1 GPU\(s\), new on 2"):
        compare(before, after)


def test_two_workloads_and_other_steps_are_pointed_out(tmp_path: Path) -> None:
    before = _profile(tmp_path, "base", Kernel(0, 100, "a"))
    after = _profile(tmp_path, "new", Kernel(0, 100, "b"), steps=3)
    notes = " ".join(compare(before, after).notes)
    assert "only 0 % of the time is in kernels that both ran" in notes
    assert "different steps (1 decode against 3 decode)" in notes


def test_like_arms_have_no_notes(tmp_path: Path) -> None:
    before = _profile(tmp_path, "base", Kernel(0, 100, "a"))
    assert compare(before, _profile(tmp_path, "new", Kernel(0, 90, "a"))).notes == ()


def test_the_printed_table(tmp_path: Path) -> None:
    before = _profile(tmp_path, "base", Kernel(0, 2_000_000, "a"), Kernel(3_000_000, 4_000_000, "old"))
    after = _profile(tmp_path, "new", Kernel(0, 1_500_000, "a"), Kernel(3_000_000, 3_100_000, "fused"))
    difference = compare(before, after)
    text = terminal(difference_headline(difference), [difference_table(difference, 1)], [])
    assert text.splitlines() == [
        "base -> new: busy 3.000 -> 1.600 ms (-46.7 %); 1 kernels in both, 1 new, 1 vanished",
        "",
        "Kernel by kernel, largest change first",
        "  change ms   of busy              ms   calls       mean us  mean change  phase                   kernel",
        "     -1.000  -33.33 %  1.000 -> 0.000  1 -> 0  1000.00 -> -          n/a  unattributed  vanished  old",
        "     -0.400  -13.33 %                                                                             (2 more rows)",
        "     +0.000   +0.00 %                                                                             (overlap)",
        "     -1.400  -46.67 %                                                                             (busy)",
        "",
    ]
