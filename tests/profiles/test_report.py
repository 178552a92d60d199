"""What a person reads: shares that add up, overlap and unattributed as rows, Markdown that survives kernel names, charts."""

import re
from pathlib import Path

import pytest
from export_maker import Content, Kernel, Launch, Range, make_export

from harness.errors import ProfileError, UsageError
from harness.profiles.charts import draw_difference, draw_top
from harness.profiles.difference import compare
from harness.profiles.model import Profile
from harness.profiles.nsys_reader import read_export
from harness.profiles.reading import read_profile
from harness.profiles.report import profile_markdown, profile_terminal
from harness.profiles.store import TABLE_NAME, load_profile, save_profile
from harness.profiles.tables import kernels_table, phases_table

FIXTURES = Path(__file__).parent / "fixtures"
NODES = FIXTURES / "decode-graph-nodes.sqlite"


def _profile(folder: Path) -> Profile:
    content = Content(
        kernels=[
            Kernel(1_000_000, 1_600_000, "void flash::fwd<(int)1>(T)", correlation=1),
            Kernel(1_500_000, 1_800_000, "some|odd_kernel", correlation=1),
            Kernel(2_000_000, 2_200_000, "lost", correlation=9),
        ],
        launches=[Launch(500, 1)],
        ranges=[Range(490, 510, "step[DECODE bs=8]")],
    )
    return read_export(make_export(folder / "small.sqlite", content), label="small")


def test_the_whole_report(tmp_path: Path) -> None:
    assert profile_terminal(_profile(tmp_path), top=2).splitlines() == [
        (
            "small: 1.000 ms busy on GPU 0, 3 kernels; attention 60.0 % of it, unattributed 20.0 % "
            "(Nsight Systems 2026.2.1.210, schema 3.25.0)"
        ),
        "",
        "GPU 0: busy 1.000 ms of 1.200 ms (16.7 % idle), 3 kernels, 0 copies and sets",
        "  phase           share      ms  calls         us a step",
        "  decode         90.0 %   0.900      2  900.00 (1 steps)",
        "  unattributed   20.0 %   0.200      1               n/a",
        "  overlap       -10.0 %  -0.100",
        "  busy          100.0 %   1.000",
        "",
        "GPU 0: by category",
        "  category    share     ms  of decode  of unattributed",
        "  attention  60.0 %  0.600     66.7 %            0.0 %",
        "  other      50.0 %  0.500     33.3 %          100.0 %",
        "",
        "GPU 0: hot kernels, share of busy time",
        "    share      ms  calls  mean us  least to most us  phase   category   kernel",
        "   60.0 %   0.600      1   600.00  600.00 to 600.00  decode  attention  flash::fwd",
        "   30.0 %   0.300      1   300.00  300.00 to 300.00  decode  other      some|odd_kernel",
        "   20.0 %   0.200      1   200.00                                       (1 more rows)",
        "  -10.0 %  -0.100                                                       (overlap)",
        "",
        "note: 1 of 3 events have no launch in the file (cut off at its edges): unattributed",
        "note: Times of a profiled run: recording slows the host down, so they are never benchmark results.",
    ]


def test_shares_of_the_hot_table_add_up_to_busy() -> None:
    profile = read_export(NODES)
    for top in (1, 5, 100):
        table = kernels_table(profile, profile.devices[0], top)
        milliseconds = sum(float(row[1]) for row in table.rows)
        assert milliseconds == pytest.approx(profile.busy_ns / 1e6, abs=0.0005 * len(table.rows))


def test_per_device_tables() -> None:
    profile = read_export(NODES)
    text = profile_terminal(profile, top=3)
    assert text.count("GPU 0: hot kernels") == 1
    assert phases_table(profile, profile.devices[0]).rows[0][4].endswith("(2 steps)")


def test_markdown_keeps_columns_and_names(tmp_path: Path) -> None:
    text = profile_markdown(_profile(tmp_path), top=5, charts=["top-kernels.png"])
    assert "![top kernels](top-kernels.png)" in text
    assert r"some\|odd\_kernel" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(counts) == 1, table


class TestStore:
    def test_what_is_saved_is_what_is_loaded(self, tmp_path: Path) -> None:
        profile = read_export(NODES)
        save_profile(tmp_path / TABLE_NAME, profile)
        assert load_profile(tmp_path / TABLE_NAME) == profile
        assert read_profile(tmp_path) == profile

    def test_a_changed_row_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / TABLE_NAME
        save_profile(path, _profile(tmp_path))
        path.write_text(path.read_text().replace('"total_ns": 600000', '"total_ns": 500000'))
        with pytest.raises(ProfileError, match="rows of device 0 add up to 1000000 ns, summed_ns says 1100000"):
            load_profile(path)

    def test_cut_off(self, tmp_path: Path) -> None:
        path = tmp_path / TABLE_NAME
        save_profile(path, _profile(tmp_path))
        path.write_text(path.read_text()[:-40])
        with pytest.raises(ProfileError, match="cannot read"):
            read_profile(path)

    def test_another_schema(self, tmp_path: Path) -> None:
        path = tmp_path / TABLE_NAME
        save_profile(path, _profile(tmp_path))
        path.write_text(path.read_text().replace('"schema": 1', '"schema": 2'))
        with pytest.raises(ProfileError, match="field 'schema' is 2, this checkout reads 1"):
            load_profile(path)


class TestReading:
    def test_every_kind_is_told_by_its_content(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(NODES.read_bytes())
        (tmp_path / "b").write_bytes((FIXTURES / "decode-kineto.json.gz").read_bytes())
        assert read_profile(tmp_path / "a", label="x").recorder == "nsys"
        assert read_profile(tmp_path / "b", label="x").recorder == "kineto"

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="there is no profile at"):
            read_profile(tmp_path / "none.sqlite")

    def test_neither(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"\x7fELF")
        with pytest.raises(ProfileError, match="neither SQLite nor JSON"):
            read_profile(tmp_path / "x")

    def test_a_report_of_nsys_has_to_be_exported(self, tmp_path: Path) -> None:
        (tmp_path / "x.nsys-rep").write_bytes(b"x")
        with pytest.raises(ProfileError, match="nox -s profile -- --from"):
            read_profile(tmp_path / "x.nsys-rep")


class TestCharts:
    @pytest.fixture(autouse=True)
    def _matplotlib(self) -> None:
        pytest.importorskip("matplotlib")

    def test_bars_are_drawn(self, tmp_path: Path) -> None:
        from matplotlib.image import imread

        profile = _profile(tmp_path)
        draw_top(tmp_path / "top.png", profile)
        draw_difference(tmp_path / "difference.png", compare(profile, read_export(NODES)))
        for name in ("top.png", "difference.png"):
            image = imread(tmp_path / name)
            assert image.shape[1] == 1320
            # Bars have colour; axes and text are grey.
            coloured = (image[..., :3].max(axis=-1) - image[..., :3].min(axis=-1) > 0.2).mean()
            assert coloured > 0.02

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ProfileError, match="cannot write"):
            draw_top(tmp_path / "none" / "top.png", _profile(tmp_path))
