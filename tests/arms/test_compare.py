from __future__ import annotations

import io
from dataclasses import replace

import pytest

from harness.arms.compare import Cause, DifferenceKind, _meant, differences
from harness.arms.overlay import build_arm
from harness.errors import ArmError
from harness.progress import Progress
from harness.trees.user import user_changes
from harness.vocabulary import Engine, TreeOrigin
from tests.arms.arm_fakes import make_environment, make_paths, make_tree, write


@pytest.fixture
def paths(tmp_path):
    return make_paths(tmp_path)


@pytest.fixture
def environment(paths):
    return make_environment(paths)


@pytest.fixture
def build(paths, environment):
    def make(tree, name="base"):
        return build_arm(paths, name, (tree,), environment, Progress(io.StringIO()))

    return make


@pytest.fixture
def base(paths, build):
    return build(make_tree(paths))


def seen(a, b):
    return {(one.kind, one.name, one.cause) for one in differences(a, b)}


def test_base_and_its_control_do_not_differ(paths, base, build):
    assert differences(base, build(base.trees[0], "control")) == ()


def test_files_that_the_series_changes_adds_and_deletes_are_the_series(paths, base, build):
    changes = {"vllm/penalties.py": "speed = 5\n", "tests/test_new.py": "x = 1\n", "vllm/old.py": None}
    patched = build(make_tree(paths, changes, "vllm/fast"), "patched")
    assert seen(base, patched) == {(DifferenceKind.TREE_FILE, name, Cause.SERIES) for name in changes}


def test_a_link_that_the_series_replaces_is_the_series(paths, base, build):
    patched = build(make_tree(paths, {"vllm/_version.py": "version = 'mine'\n"}, "vllm/version"), "patched")
    assert (DifferenceKind.LINK, "vllm/_version.py", Cause.SERIES) in seen(base, patched)


def test_a_compiled_file_of_ones_own_is_not_the_series(paths, base, build):
    tree = make_tree(paths, {"vllm/penalties.py": "speed = 5\n"}, "vllm/fast")
    write(tree.path, {"vllm/_C.abi3.so": "built by hand"})
    assert (DifferenceKind.LINK, "vllm/_C.abi3.so", Cause.OTHER) in seen(base, build(tree, "patched"))


def test_packages_variables_and_interpreter_are_not_the_series(base):
    environment = replace(base.environment, packages={"torch": "2.12.0", "numpy": "2.2.6"}, digest="f" * 64)
    other = replace(base, environment=environment, variables={**base.variables, "PYTHONHASHSEED": "1"})
    assert seen(base, other) == {
        (DifferenceKind.PACKAGE, "torch", Cause.OTHER),
        (DifferenceKind.VARIABLE, "PYTHONHASHSEED", Cause.OTHER),
        (DifferenceKind.INTERPRETER, "environment", Cause.OTHER),
    }


def test_another_base_is_not_the_series(paths, base, build):
    tree = make_tree(paths, {"csrc/kernel.cu": "// other\n"}, "vllm/moved")
    moved = build(replace(tree, base=tree.tip), "patched")
    found = seen(base, moved)
    assert (DifferenceKind.BASE, "vllm base commit", Cause.OTHER) in found
    assert (DifferenceKind.TREE_FILE, "csrc/kernel.cu", Cause.OTHER) in found


def test_uncommitted_changes_of_a_checkout_are_what_is_measured(paths, base, build):
    tree = make_tree(paths, label="own")
    write(tree.path, {"vllm/penalties.py": "speed = 7\n", "vllm/new.py": "x = 1\n"})
    own = build(replace(tree, origin=TreeOrigin.PATH, changes=user_changes(tree.path)), "own")
    assert seen(base, own) == {
        (DifferenceKind.TREE_FILE, "vllm/penalties.py", Cause.SERIES),
        (DifferenceKind.TREE_FILE, "vllm/new.py", Cause.SERIES),
    }


def test_arms_of_different_engines_do_not_compare(base):
    other = replace(base, trees=(replace(base.trees[0], engine=Engine.SGLANG),))
    with pytest.raises(ArmError, match=r"vllm .* sglang"):
        differences(base, other)


def test_a_neighbour_whose_name_begins_alike_is_not_the_tree():
    places = {"/src/vllm": "<tree>", "/src/vllm/state/arms/x": "<arm>"}
    assert _meant("/src/vllm-upkernel/recorder", places) == "/src/vllm-upkernel/recorder"
    assert _meant("/src/vllm/python", places) == "<tree>/python"
    assert _meant("/src/vllm/state/arms/x/cache", places) == "<arm>/cache"
