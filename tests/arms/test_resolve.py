"""Which kind of tree a name means, and what the command `arms` says; trees and environments are stand-ins."""

from __future__ import annotations

import argparse
import io

import pytest

from harness.arms import resolve
from harness.arms.overlay import build_arm
from harness.arms.resolve import tree_for
from harness.commands import arms
from harness.context import Context
from harness.errors import UnknownSeriesError
from harness.progress import Progress
from harness.vocabulary import Engine, ExitCode
from tests.arms.arm_fakes import make_environment, make_paths, make_tree, write


@pytest.fixture
def paths(tmp_path):
    return make_paths(tmp_path)


@pytest.fixture
def asked(monkeypatch):
    """Every way to a tree, replaced by its name."""
    monkeypatch.setattr(resolve, "base_tree", lambda *_, **__: "base tree")
    monkeypatch.setattr(resolve, "patched_tree", lambda _paths, _pin, series, **_: f"tree of series {series}")
    monkeypatch.setattr(resolve, "user_tree", lambda _paths, _pin, what, **_: f"tree of the user's {what}")
    monkeypatch.setattr(resolve, "list_series", lambda _paths: ("vllm/fast",))
    monkeypatch.setattr(resolve, "read_series", lambda _paths, name: name)
    return lambda paths, what: tree_for(paths, None, what, Progress(io.StringIO()))


@pytest.mark.parametrize(
    ("what", "tree"),
    [
        ("base", "base tree"),
        ("vllm/fast", "tree of series vllm/fast"),
        ("my-branch", "tree of the user's my-branch"),
        ("origin/main", "tree of the user's origin/main"),
        ("./vllm", "tree of the user's ./vllm"),
    ],
)
def test_what_a_name_means(asked, paths, what, tree):
    assert asked(paths, what) == tree


def test_an_existing_folder_with_a_series_like_name_is_a_path(asked, paths, tmp_path, monkeypatch):
    (tmp_path / "vllm/checkout").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert asked(paths, "vllm/checkout") == "tree of the user's vllm/checkout"


def test_an_unknown_series_offers_the_nearest(paths):
    write(paths.patches, {"vllm/penalties-bin-counts/series.toml": ""})
    with pytest.raises(UnknownSeriesError, match="vllm/penalties-bin-counts"):
        tree_for(paths, None, "vllm/penalties-bin-count", Progress(io.StringIO()))


@pytest.mark.parametrize(
    ("built_by_hand", "result"),
    [(False, (ExitCode.OK, "all of them the series")), (True, (ExitCode.ERROR, "1 of them not the series"))],
)
def test_the_command_fails_on_a_difference_that_is_not_the_series(built_by_hand, result, paths, monkeypatch, capsys):
    environment = make_environment(paths)
    trees = {"base": make_tree(paths), "vllm/fast": make_tree(paths, {"vllm/penalties.py": "speed = 5\n"}, "vllm/fast")}
    if built_by_hand:
        write(trees["vllm/fast"].path, {"vllm/_C.abi3.so": "mine"})
    progress = Progress(io.StringIO())
    monkeypatch.setattr(
        resolve, "arm_for", lambda _p, _pin, what, *_, **__: build_arm(paths, what, (trees[what],), environment, progress)
    )
    monkeypatch.setattr("harness.pins.reader.read_pins", lambda _file: argparse.Namespace(find=lambda *_: None))
    args = argparse.Namespace(a="base", b="vllm/fast", engine=Engine.VLLM.value, pin="bench", device="cpu", mirror=None)
    code, words = result
    assert arms.main(args, Context(paths, progress)) is code
    said = capsys.readouterr().out
    assert words in said
    assert "vllm/penalties.py" in said
