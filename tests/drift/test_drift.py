"""Each state of a series on another release, what is said about it, and since when it does not apply."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from harness.drift.moves import follow
from tests.series.conftest import numbered
from tests.upstream_fakes import SPDX

TEST = {"tests/test_core.py": SPDX + "x = 1\n"}


def rows_of(person, tmp_path, *words):
    """Exit code, rows of the JSON, and what was printed."""
    code, out, err = person.asks("drift", *words, "--json", str(tmp_path / "drift.json"))
    return code, json.loads((tmp_path / "drift.json").read_text())["rows"], out + err


@pytest.fixture
def series(person):
    """Changes line 30 of core.py and adds a test."""
    person.make_series({"engine/core.py": numbered(80, _30="thirty"), **TEST})
    return person


def head_row(person, tmp_path, *words):
    code, rows, text = rows_of(person, tmp_path, "--pin", "head", *words)
    assert code == 0, text
    (row,) = rows
    return row, text


def test_a_change_elsewhere_in_the_file_leaves_it_clean(series, tmp_path):
    series.release({"engine/core.py": numbered(80, _70="seventy")})
    row, text = head_row(series, tmp_path)
    assert row["state"] == "clean"
    assert row["source"] == "git"
    assert row["commit"] == series.upstream.git("rev-parse", "v2.0")
    assert "| clean | nothing" in text


def test_changed_context_needs_a_three_way_merge(series, tmp_path):
    series.release({"engine/core.py": numbered(80, _27="twenty-seven")})
    row, text = head_row(series, tmp_path)
    assert row["state"] == "clean-3way"
    assert "0001-kernel-faster-core.patch: clean-3way" in text


def test_a_conflict_names_file_hunk_and_line_and_only_those_that_are_left_to_a_person(person, tmp_path):
    changed = {"engine/core.py": numbered(80, _10="ten", _50="fifty"), "engine/other.py": numbered(20, _10="ten"), **TEST}
    person.make_series(changed)
    person.release({"engine/core.py": numbered(80, _50="other"), "engine/other.py": numbered(20, _7="seven")})
    row, text = head_row(person, tmp_path)
    assert row["state"] == "conflict"
    (patch,) = row["patches"]
    # other.py merges 3-way, and hunk 1 of core.py applies
    assert patch["conflicts"] == [{"path": "engine/core.py", "hunks": [{"number": 2, "of": 2, "line": 47}], "reason": ""}]
    assert "engine/core.py: hunk 2 of 2 (line 47)" in text
    assert "nox -s port -- vllm/faster-core --to 2.0" in text


def test_what_upstream_has_taken_is_landed(series, tmp_path):
    series.release({"engine/core.py": numbered(80, _30="thirty", _60="sixty"), **TEST})
    row, _ = head_row(series, tmp_path)
    assert row["state"] == "landed"


def test_a_moved_file_is_named_with_its_new_name_and_followed(series, tmp_path):
    series.release({"engine/core.py": None, "kernels/ops/core.py": numbered(80, _1="import other", _33="33")})
    row, text = head_row(series, tmp_path)
    (patch,) = row["patches"]
    assert (row["state"], patch["followed"]) == ("target-gone", "clean-3way")
    (move,) = patch["moves"]
    assert (move["old"], move["new"]) == ("engine/core.py", "kernels/ops/core.py")
    assert 80 < move["similarity"] < 100
    assert "engine/core.py is now kernels/ops/core.py" in text


def test_a_moved_file_whose_lines_changed_too_is_a_conflict_under_its_new_name(series, tmp_path):
    series.release({"engine/core.py": None, "kernels/ops/core.py": numbered(80, _30="other")})
    row, _ = head_row(series, tmp_path)
    (patch,) = row["patches"]
    assert (row["state"], patch["followed"]) == ("target-gone", "conflict")
    assert patch["conflicts"][0]["path"] == "kernels/ops/core.py"


def test_a_file_that_was_there_before_is_not_taken_for_the_moved_one(series, tmp_path):
    series.upstream.checkout("v1.0")
    series.release({"engine/core.py": None, "engine/big.py": numbered(80)})
    row, text = head_row(series, tmp_path)
    assert row["state"] == "target-gone"
    assert row["patches"][0]["moves"] == [{"old": "engine/core.py", "new": None, "similarity": 0}]
    assert "engine/core.py is gone" in text


def test_every_pin_is_looked_at_and_a_port_is_used_where_there_is_one(series, tmp_path):
    series.release({"engine/core.py": numbered(80, _30="other")})
    code, rows, _ = rows_of(series, tmp_path)
    assert code == 0
    assert [(row["target"], row["state"], row["patches_for"]) for row in rows] == [
        ("1.0", "clean", "1.0"),
        ("2.0", "conflict", "1.0"),
    ]
    (patch,) = series.series().glob("*.patch")
    port = series.series() / "ports" / "2.0" / patch.name
    port.parent.mkdir(parents=True)
    port.write_bytes(patch.read_bytes().replace(b"-line 30\n", b"-other\n"))
    toml = series.series() / "series.toml"
    toml.write_text(toml.read_text().replace("ports = []", 'ports = ["2.0"]'))
    code, rows, _ = rows_of(series, tmp_path)
    assert [(row["target"], row["state"], row["patches_for"]) for row in rows] == [
        ("1.0", "clean", "1.0"),
        ("2.0", "clean", "2.0"),
    ]


def test_on_a_branch_the_last_commit_at_which_it_applied_and_the_one_that_ended_it_are_found(series, tmp_path):
    upstream = series.upstream
    upstream.commit("unrelated", {"engine/other.py": numbered(20, _1="one")})
    good = upstream.commit("near", {"engine/core.py": numbered(80, _60="sixty")})
    last = upstream.commit("unrelated again", {"engine/other.py": numbered(20, _2="two")})
    ended = upstream.commit("break it", {"engine/core.py": numbered(80, _30="other", _60="sixty")})
    upstream.commit("and later", {"engine/core.py": numbered(80, _30="other", _60="sixty", _61="61")})
    before = upstream.git("count-objects", "-v")
    code, rows, text = rows_of(series, tmp_path, "--pin", "bench", "--ref", "main")
    assert code == 0
    assert rows[1]["state"] == "conflict"
    assert rows[1]["last_good"] == {"commit": last, "ended_by": ended, "subject": "break it", "looked": 2}
    assert f"last applied at {last[:12]}; ended by {ended[:12]} (break it)" in text
    assert good != last
    assert upstream.git("count-objects", "-v") == before, "the mirror was written to"


def test_without_history_since_when_is_unknown_and_says_why(series, tmp_path):
    series.release({"engine/core.py": numbered(80, _30="other")})
    shallow = tmp_path / "shallow"
    series.upstream.git("clone", "--quiet", "--depth=1", "--branch=main", series.upstream.path.as_uri(), str(shallow))
    code, out, err = series.types("drift", "--pin", "bench", "--ref", "main", "--mirror", str(shallow))
    assert code == 1, "v1.0, which the patches are for, is nowhere"
    assert out.count("not looked at: no index in tests") == 2
    assert "has no tag v1.0" in err
    # once the harness has v1.0, the branch can be looked at, but not its past
    assert series.asks("drift", "--pin", "bench")[0] == 0
    code, out, _ = series.types("drift", "--pin", "bench", "--ref", "main", "--mirror", str(shallow))
    assert code == 0
    assert "| conflict | rebase" in out
    assert "has no tag v1.0, so it is not known from where to look" in out


def test_a_mirror_without_the_tag_is_said_with_the_tags_that_it_has(series):
    series.release({"engine/core.py": numbered(80, _1="one")}, tag="v2.0.post1")
    code, out, _ = series.asks("drift", "--pin", "head", "--source", "git")
    assert code == 1
    assert "has no tag v2.0. Did you mean 'v1.0' or 'v2.0.post1'?" in out


def test_a_pin_that_the_engine_does_not_have_is_a_usage_error_with_the_nearest(series):
    code, _, err = series.asks("drift", "vllm/faster-core", "--pin", "2.1")
    assert code == 2
    assert "there is no vllm pin '2.1'" in err
    assert "Did you mean '2.0'" in err


def test_a_series_whose_own_pin_is_gone_does_not_hide_the_others(series, tmp_path):
    series.release({"engine/core.py": numbered(80, _1="one")})
    shutil.copytree(series.series(), series.series("vllm/old"))
    toml = series.series("vllm/old") / "series.toml"
    toml.write_text(toml.read_text().replace('pin = "1.0"', 'pin = "0.9"'))
    code, rows, text = rows_of(series, tmp_path)
    assert code == 1
    assert [(row["series"], row["state"]) for row in rows] == [
        ("vllm/faster-core", "clean"),
        ("vllm/faster-core", "clean"),
        ("vllm/old", None),
    ]
    assert "there is no vllm pin '0.9'" in text


def test_a_series_it_stands_on_counts_and_is_named(series, tmp_path):
    series.make_series({"engine/other.py": numbered(20, _10="ten"), **TEST}, name="vllm/on-top", after='["vllm/faster-core"]')
    (patch,) = series.series("vllm/on-top").glob("*.patch")
    content = patch.read_text()
    start = content.index("diff --git a/tests")
    patch.write_text(content[:start])
    series.release({"engine/core.py": numbered(80, _30="other")})
    row, text = head_row(series, tmp_path, "vllm/on-top")
    assert row["state"] == "conflict"
    assert [patch["state"] for patch in row["patches"]] == ["conflict", "clean"]
    assert "  vllm/faster-core 0001-kernel-faster-core.patch: conflict" in text


def test_a_moved_file_is_followed_further_than_git_would(series, tmp_path):
    # 44 of 80 lines are others: less than the half that git's own merges want
    other = {f"_{number}": f"text {number}" for number in range(37, 81)}
    series.release({"engine/core.py": None, "kernels/ops/core.py": numbered(80, **other)})
    row, _ = head_row(series, tmp_path)
    (patch,) = row["patches"]
    (move,) = patch["moves"]
    assert move["new"] == "kernels/ops/core.py"
    assert 40 <= move["similarity"] < 50
    assert patch["followed"] == "clean"


def test_a_moved_file_that_has_grown_is_found_by_its_name_and_lines(series, tmp_path):
    grown = numbered(80, _70="seventy") + "".join(f"more {number}\n" for number in range(400))
    series.release({"engine/core.py": None, "kernels/ops/core.py": grown, "kernels/wave/core.py": "line 1\n", "z.py": grown})
    row, _ = head_row(series, tmp_path)
    (patch,) = row["patches"]
    assert patch["moves"] == [{"old": "engine/core.py", "new": "kernels/ops/core.py", "similarity": 97}]
    assert patch["followed"] == "clean"


def test_what_has_landed_is_known_without_the_old_files_too(series, tmp_path):
    (patch,) = series.series().glob("*.patch")
    text = patch.read_text()
    old = re.search(r"^index ([0-9a-f]{40})", text, re.MULTILINE)[1]
    patch.write_text(text.replace(old, "1" * 40))
    series.release({"engine/core.py": numbered(80, _30="thirty", _60="sixty"), **TEST})
    row, _ = head_row(series, tmp_path)
    assert row["state"] == "landed"


def test_only_the_names_of_the_moved_file_are_replaced():
    patch = (
        b"diff --git a/x/a.py b/x/a.py\n--- a/x/a.py\n+++ b/x/a.py\n@@ -1,2 +1,2 @@\n--- a/x/a.py\n+++ b/x/a.py\n x/a.py\n"
        b"diff --git a/x/a.pyi b/x/a.pyi\n--- a/x/a.pyi\n+++ b/x/a.pyi\n@@ -1 +1 @@\n-1\n+2\n"
    )
    followed = follow(patch, {"x/a.py": "y/b.py"})
    assert followed == patch.replace(
        b"diff --git a/x/a.py b/x/a.py\n--- a/x/a.py\n+++ b/x/a.py\n",
        b"diff --git a/y/b.py b/y/b.py\n--- a/y/b.py\n+++ b/y/b.py\n",
        1,
    )
