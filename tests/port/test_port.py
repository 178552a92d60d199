"""A port as a person makes it: clean, moved, with conflicts, given up, made again."""

from __future__ import annotations

import tomllib

import pytest

from tests.series.conftest import Repository, numbered
from tests.upstream_fakes import SPDX

TEST = {"tests/test_core.py": SPDX + "x = 1\n"}
PORT = ("port", "vllm/faster-core", "--to", "head")


@pytest.fixture
def series(person):
    """Changes line 30 of core.py and adds a test."""
    person.make_series({"engine/core.py": numbered(80, _30="thirty"), **TEST})
    return person


def tree_of(person) -> Repository:
    return Repository(person.paths.trees / "vllm" / "work-faster-core-to-2.0")


def ported(person) -> str:
    """The patch of the port, once it is proved that nothing is left over and that it applies to the locked tip."""
    (patch,) = (person.series() / "ports" / "2.0").glob("*.patch")
    assert tomllib.loads((person.series() / "series.toml").read_text())["ports"] == ["2.0"]
    assert not (person.paths.trees / "vllm" / "work-faster-core-to-2.0").exists()
    code, _, err = person.asks("apply", "vllm/faster-core", "--pin", "head")
    assert code == 0, err
    assert "not in" not in err, "the tip is not locked"
    assert person.asks("drift", "vllm/faster-core", "--pin", "head")[1].count("| clean ") == 1
    return patch.read_text()


def test_a_series_that_merges_is_ported_locked_listed_and_shown_beside_the_old_one(series):
    toml = series.series() / "series.toml"
    toml.write_text("# my own comment\n" + toml.read_text())
    series.release({"engine/core.py": numbered(80, _27="twenty-seven", _70="70")})
    code, out, err = series.asks(*PORT)
    assert code == 0, err
    assert "[Kernel] Faster core" in out, "no range-diff"
    assert "twenty-seven" in out
    patch = ported(series)
    assert "\n twenty-seven\n" in patch
    assert "\n+thirty\n" in patch
    assert toml.read_text().startswith("# my own comment\n")


def test_a_moved_file_is_followed_and_its_new_name_is_said(series):
    series.release({"engine/core.py": None, "kernels/ops/core.py": numbered(80, _1="import other", _33="33")})
    code, out, err = series.asks(*PORT)
    assert code == 0, err
    assert "moved: engine/core.py -> kernels/ops/core.py" in out
    patch = ported(series)
    assert "diff --git a/kernels/ops/core.py b/kernels/ops/core.py" in patch
    assert "engine/core.py" not in patch


def test_a_conflict_is_left_in_the_tree_named_with_its_lines_and_finished_by_continue(series):
    series.release({"engine/core.py": numbered(80, _30="other")})
    code, out, _ = series.asks(*PORT)
    assert code == 1
    assert "0001-kernel-faster-core.patch conflicts on vllm-2.0" in out
    assert "engine/core.py:30" in out
    tree = tree_of(series)
    content = (tree.path / "engine/core.py").read_text()
    assert "<<<<<<<" in content
    assert "other" in content
    assert "thirty" in content
    tree.write({"engine/core.py": numbered(80, _30="other thirty")})
    tree.git("add", "engine/core.py")
    code, _, err = series.types(*PORT, "--continue")
    assert code == 0, err
    patch = ported(series)
    assert "\n-other\n+other thirty\n" in patch
    assert 'From: "A. Author" <author@example.org>' in patch


def test_conflict_markers_that_are_left_are_refused_with_their_lines(series):
    series.release({"engine/core.py": numbered(80, _30="other")})
    assert series.asks(*PORT)[0] == 1
    tree = tree_of(series)
    tree.git("add", "engine/core.py")
    for _ in range(2):
        code, _, err = series.types(*PORT, "--continue")
        assert code == 1
        assert "conflict markers are left" in err
        assert "engine/core.py:30" in err
        assert "engine/core.py:34" in err
    # and when the person commits them by hand
    tree.git("am", "--continue")
    code, _, err = series.types(*PORT, "--continue")
    assert code == 1
    assert "conflict markers are left" in err
    assert not (series.series() / "ports").exists()


def test_an_underlined_heading_is_not_a_conflict_marker(series):
    series.make_series({"README.rst": "Title\n=======\n", **TEST}, name="vllm/heading")
    series.release({"engine/core.py": numbered(80, _30="other")})
    code, _, err = series.asks("port", "vllm/heading", "--to", "head")
    assert code == 0, err


def test_a_file_that_the_other_pin_has_no_more_is_not_brought_back_by_mistake(series):
    series.release({"engine/core.py": None})
    code, out, _ = series.asks(*PORT)
    assert code == 1
    assert "engine/core.py: gone on one side" in out
    code, _, err = series.types(*PORT, "--continue")
    assert code == 1
    assert "only one side has these files" in err
    tree_of(series).git("rm", "--quiet", "engine/core.py")
    code, out, err = series.types(*PORT, "--continue")
    assert code == 0, err
    assert "moved: engine/core.py -> not found" in out
    assert "engine/core.py" not in ported(series)


def test_continuing_with_nothing_left_of_a_patch_does_not_lose_it_without_a_word(series):
    series.release({"engine/core.py": numbered(80, _30="other"), **TEST})
    assert series.asks(*PORT)[0] == 1
    tree_of(series).git("checkout", "--quiet", "--ours", "engine/core.py")
    code, _, err = series.types(*PORT, "--continue")
    assert code == 1
    assert "0001-kernel-faster-core.patch would be lost" in err
    code, _, err = series.types(*PORT, "--skip")
    assert code == 1
    assert "nothing is left of vllm/faster-core on vllm-2.0" in err


def test_files_that_are_in_no_commit_are_named(series):
    series.release({"engine/core.py": numbered(80, _30="other")})
    series.asks(*PORT)
    tree_of(series).write({"engine/core.py": numbered(80, _30="mine"), "engine/new.py": "x\n"})
    code, _, err = series.types(*PORT, "--continue")
    assert code == 1
    assert "\n  engine/new.py" in err


def test_a_port_that_is_there_is_kept_until_redo_has_finished(series):
    series.release({"engine/core.py": numbered(80, _27="twenty-seven")})
    assert series.asks(*PORT)[0] == 0
    before = ported(series)
    code, _, err = series.asks(*PORT)
    assert code == 1
    assert "has a port to vllm-2.0 already" in err
    assert "--redo" in err
    assert series.asks(*PORT, "--redo")[0] == 0
    assert ported(series) == before


def test_a_port_that_was_begun_is_not_begun_again_and_can_be_given_up(series):
    series.release({"engine/core.py": numbered(80, _30="other")})
    assert series.asks(*PORT)[0] == 1
    code, _, err = series.asks(*PORT)
    assert code == 1
    assert "was begun" in err
    assert series.types(*PORT, "--abort")[0] == 0
    assert not (series.paths.trees / "vllm" / "work-faster-core-to-2.0").exists()
    code, _, err = series.types(*PORT, "--continue")
    assert code == 1
    assert "no port of vllm/faster-core to vllm-2.0 was begun" in err


def test_a_series_that_changed_meanwhile_is_not_gone_on_with(series):
    series.release({"engine/core.py": numbered(80, _30="other")})
    series.asks(*PORT)
    (patch,) = series.series().glob("*.patch")
    patch.write_bytes(patch.read_bytes().replace(b"It is slow.", b"Very."))
    code, _, err = series.types(*PORT, "--continue")
    assert code == 1
    assert "have changed since this port was begun" in err


def test_what_the_other_pin_has_already_is_said(series):
    series.release({"engine/core.py": numbered(80, _30="thirty"), **TEST})
    code, _, err = series.asks(*PORT)
    assert code == 1
    assert "nothing is left of vllm/faster-core on vllm-2.0" in err


def test_its_own_pin_and_an_unknown_pin_are_refused(series):
    series.release({"engine/core.py": numbered(80, _30="other")})
    code, _, err = series.asks("port", "vllm/faster-core", "--to", "bench")
    assert code == 1
    assert "is the pin that vllm/faster-core is for" in err
    code, _, err = series.asks("port", "vllm/faster-core", "--to", "3.0")
    assert code == 2
    assert "there is no vllm pin '3.0'" in err


def test_a_mirror_without_the_tag_is_refused_when_only_git_will_do(series):
    code, _, err = series.asks(*PORT, "--source", "git")
    assert code == 1
    assert "has no tag v2.0" in err
    assert not (series.paths.trees / "vllm").exists()
