"""Arms with FlashInfer: its sources are the tree's own, what it compiles is kept by content, and it combines with vLLM."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

from harness.arms.compare import Cause, differences
from harness.arms.overlay import build_arm, check_arm
from harness.arms.variables import JIT_VARIABLE
from harness.git import git
from harness.progress import Progress
from harness.trees.model import Tree
from harness.vocabulary import Engine, Source, TreeOrigin
from tests.arms.arm_fakes import commit, make_environment, make_paths, make_tree, make_wheel

SOURCES = {
    "flashinfer/__init__.py": "name = 'base'\n",
    "csrc/decode.cu": "// base\n",
    "include/flashinfer/attention/decode.cuh": "// base\n",
}
WHEEL = {
    "flashinfer/__init__.py": "name = 'wheel'\n",
    "flashinfer/_build_meta.py": "version = '0.6.12'\n",
    "flashinfer/data/csrc/decode.cu": "// the wheel's\n",
    "flashinfer/data/include/flashinfer/attention/decode.cuh": "// the wheel's\n",
    "flashinfer/data/cutlass/include/cutlass.h": "// cutlass\n",
}


@pytest.fixture
def paths(tmp_path):
    return make_paths(tmp_path)


@pytest.fixture
def environment(paths):
    made = make_environment(paths, "vllm-0.24.0-cuda-py312")
    make_wheel(made.prefix.parent / "wheel-flashinfer", WHEEL)
    return dataclasses.replace(made, wheels=dict(made.wheels) | {Engine.FLASHINFER: made.prefix.parent / "wheel-flashinfer"})


@pytest.fixture
def tree(paths):
    """Makes a worktree of FlashInfer: its base, or a commit on it."""
    repository = paths.repositories / "flashinfer.git"
    first = paths.state / "first-flashinfer"
    first.mkdir(parents=True)
    git(first, "init", "--quiet", "--initial-branch=main")
    commit(first, dict(SOURCES))
    git(first, "clone", "--quiet", "--bare", str(first), str(repository))

    def make(changes: dict[str, str | None] | None = None, label: str = "base") -> Tree:
        base = git(repository, "rev-parse", "refs/heads/main").stdout
        path = paths.trees / "flashinfer" / label
        git(repository, "worktree", "add", "--quiet", "--detach", str(path), base)
        tip = commit(path, changes) if changes else base
        origin = TreeOrigin.SERIES if changes else TreeOrigin.BASE
        return Tree(Engine.FLASHINFER, "0.6.12", path, "", base, tip, Source.ARCHIVE, origin, label)

    return make


@pytest.fixture
def build(paths, environment):
    return lambda *trees, name="arm": build_arm(paths, name, trees, environment, Progress(io.StringIO()))


def read(tree: Tree, path: str) -> str:
    return (tree.path / "flashinfer/data" / path).read_text()


def test_what_is_compiled_on_demand_is_the_trees_own(build, tree, environment):
    header = "include/flashinfer/attention/decode.cuh"
    patched = tree({header: "// faster\n", "csrc/new.cu": "// new\n", "csrc/decode.cu": None}, "patched")
    arm = build(patched)
    assert read(patched, header) == "// faster\n"
    assert read(patched, "csrc/new.cu") == "// new\n"
    assert not (patched.path / "flashinfer/data/csrc/decode.cu").exists()
    wheel = environment.wheels[Engine.FLASHINFER]
    assert (
        patched.path / "flashinfer/data/cutlass/include/cutlass.h"
    ).resolve() == wheel / "flashinfer/data/cutlass/include/cutlass.h"
    assert sorted(arm.links) == ["flashinfer/_build_meta.py", "flashinfer/data/cutlass/include/cutlass.h"]
    assert git(patched.path, "status", "--porcelain").stdout == ""
    check_arm(arm)


def test_a_file_that_went_takes_its_link_along(build, tree):
    here = tree()
    build(here)
    (here.path / "csrc/decode.cu").unlink()
    build(here)
    assert not (here.path / "flashinfer/data/csrc/decode.cu").is_symlink()


def test_no_folder_is_a_link(build, tree):
    here = tree()
    build(here)
    assert not [one for one in (here.path / "flashinfer").rglob("*") if one.is_dir() and one.is_symlink()]


def test_what_was_compiled_is_kept_by_content_and_not_by_time(build, tree):
    base, patched = tree(), tree({"csrc/decode.cu": "// faster\n"}, "patched")
    first, control, other = build(base), build(base, name="control"), build(patched)
    assert first.variables[JIT_VARIABLE] == control.variables[JIT_VARIABLE]
    assert first.variables[JIT_VARIABLE] != other.variables[JIT_VARIABLE]


def test_uncommitted_changes_of_a_checkout_are_another_content(build, tree):
    here = tree()
    clean, edited = (dataclasses.replace(here, origin=TreeOrigin.PATH, changes=one) for one in (None, "f" * 64))
    assert build(clean).variables[JIT_VARIABLE] != build(edited).variables[JIT_VARIABLE]


def test_an_arm_of_two_engines_differs_in_the_series_alone(build, paths, tree):
    vllm = make_tree(paths)
    base, patched = (
        build(vllm, tree(), name="base"),
        build(vllm, tree({"csrc/decode.cu": "// faster\n"}, "patched"), name="patched"),
    )
    search = base.variables["PYTHONPATH"].split(":")
    assert [Path(one) for one in search[-2:]] == [vllm.path, base.trees[1].path]
    assert "vllm/_C.abi3.so" in base.links
    assert "flashinfer/_build_meta.py" in base.links
    found = differences(base, patched)
    assert [(one.name, one.cause) for one in found] == [("csrc/decode.cu", Cause.SERIES)]
