from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import pytest

from harness.errors import SeriesError, TreeError
from harness.git import git
from harness.series.model import DuplicateCheck, Series
from harness.trees.use import removing, using
from harness.trees.worktrees import base_of, base_tree, patched_tree, prune, work_tree
from harness.vocabulary import Engine, SeriesStatus, Source, TreeOrigin

PATCH = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A <a@example.org>
Date: Sun, 1 Nov 2026 12:00:00 +0200
Subject: Faster core

---
diff --git a/vllm/core.py b/vllm/core.py
--- a/vllm/core.py
+++ b/vllm/core.py
@@ -1 +1 @@
-{old}
+{new}
"""


@pytest.fixture
def series_for(paths):
    """A series of one patch that turns the content of vllm/core.py from one word into another."""

    def make(name: str, old: str, new: str, *, after: tuple[str, ...] = ()) -> Series:
        directory = paths.patches / "vllm" / name
        directory.mkdir(parents=True)
        patch = directory / "0001-core.patch"
        patch.write_text(PATCH.format(old=old, new=new), encoding="utf-8")
        day = datetime.date(2026, 11, 1)
        return Series(
            engine=Engine.VLLM,
            name=name,
            directory=directory,
            title="t",
            why="w",
            links=(),
            after=after,
            duplicates=DuplicateCheck(day, ()),
            status=SeriesStatus.DRAFT,
            status_date=day,
            pin="1.0",
            ports=(),
            workloads=(),
            upstream_tests=(),
            evidence=(),
            build=False,
            removal="r",
            patches=(patch,),
        )

    return make


def folders(paths):
    return sorted(one.name for one in (paths.trees / "vllm").iterdir())


def test_a_base_tree_is_named_by_its_tip_and_holds_its_files(paths, pin_for, progress):
    tree = base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE)
    assert tree.path == paths.trees / "vllm" / tree.tip[:12]
    assert (tree.base, tree.origin, tree.source, tree.import_path) == (tree.tip, TreeOrigin.BASE, Source.ARCHIVE, tree.path)
    assert (tree.path / "vllm" / "core.py").read_text(encoding="utf-8") == "one\n"
    assert git(tree.path, "rev-parse", "HEAD").stdout == tree.tip
    assert git(tree.path, "status", "--porcelain", "--ignored").stdout == ""
    assert folders(paths) == [tree.tip[:12]]


def test_a_second_call_uses_the_same_tree(paths, pin_for, progress):
    first = base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE)
    stamp = first.path.stat().st_ino
    assert base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE) == first
    assert first.path.stat().st_ino == stamp


def test_sglangs_import_root_is_python(paths, pin_for, progress, wheel):
    archive = wheel(paths.archives / "sglang-1.0-py3-none-any.whl", {"sglang/__init__.py": b""})
    tree = base_tree(paths, pin_for(archive, engine=Engine.SGLANG, prefix="python/"), progress=progress, source=Source.ARCHIVE)
    assert (tree.import_path / "sglang" / "__init__.py").is_file()
    assert tree.import_root == "python"


def test_base_of_makes_no_worktree(paths, pin_for, progress):
    base = base_of(paths, pin_for(), progress=progress, source=Source.ARCHIVE)
    assert base.source is Source.ARCHIVE
    assert not paths.trees.exists()


@pytest.mark.parametrize("name", ["vllm/core.py", "vllm/new.py"])
def test_a_changed_tree_is_refused_with_its_files_and_stays(paths, pin_for, progress, name):
    tree = base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE)
    (tree.path / name).write_text("mine\n", encoding="utf-8")
    with pytest.raises(TreeError) as caught:
        base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE)
    assert str(tree.path) in str(caught.value)
    assert f"\n  {name}" in str(caught.value)
    assert "delete the folder" in str(caught.value)
    assert (tree.path / name).read_text(encoding="utf-8") == "mine\n"


def test_excluded_overlay_links_do_not_make_a_tree_dirty(paths, pin_for, progress):
    tree = base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE)
    exclude = Path(git(tree.path, "rev-parse", "--git-path", "info/exclude").stdout)
    exclude.write_text("/vllm/_C.abi3.so\n", encoding="utf-8")
    (tree.path / "vllm" / "_C.abi3.so").symlink_to("/nonexistent")
    assert base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE) == tree


def test_a_tree_with_a_commit_of_the_users_is_refused(paths, pin_for, progress):
    tree = base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE)
    git(tree.path, "commit", "--quiet", "--allow-empty", "--message", "mine")
    with pytest.raises(TreeError, match=r"somebody committed in it\..*nox -s export"):
        base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE)


def test_a_deleted_tree_is_made_again(paths, pin_for, progress):
    tree = base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE)
    shutil.rmtree(tree.path)
    assert base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE) == tree
    assert (tree.path / "vllm" / "core.py").is_file()


def test_a_tree_whose_making_was_killed_is_made_again(paths, pin_for, progress):
    base = base_of(paths, pin_for(), progress=progress, source=Source.ARCHIVE)
    repo = paths.repositories / "vllm.git"
    half = paths.trees / "vllm" / f".making-{base.commit[:12]}"
    half.parent.mkdir(parents=True)
    git(repo, "worktree", "add", "--quiet", "--detach", "--no-checkout", str(half), base.commit)
    tree = base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE)
    assert (tree.path / "vllm" / "core.py").is_file()
    assert folders(paths) == [tree.path.name]
    assert git(repo, "worktree", "list").stdout.count("\n") == 1


def test_a_kill_between_rename_and_repair_loses_no_tree(paths, pin_for, progress):
    tree = base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE)
    repo = paths.repositories / "vllm.git"
    (record,) = (repo / "worktrees").iterdir()
    (record / "gitdir").write_text(f"{tree.path.with_name('.making-x')}/.git\n", encoding="utf-8")
    prune(paths, Engine.VLLM)
    assert base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE) == tree


def test_a_checkout_that_fails_leaves_nothing(paths, pin_for, progress, monkeypatch):
    base_of(paths, pin_for(), progress=progress, source=Source.ARCHIVE)
    monkeypatch.setattr(
        "harness.trees.worktrees.Path.rename", lambda *_args: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    with pytest.raises(OSError, match="No space left"):
        base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE)
    assert folders(paths) == []


def test_a_patched_tree_has_the_patch_and_knows_its_base(paths, pin_for, progress, series_for):
    base = base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE)
    tree = patched_tree(paths, pin_for(), series_for("fast", "one", "three"), progress=progress, source=Source.ARCHIVE)
    assert (tree.path / "vllm" / "core.py").read_text(encoding="utf-8") == "three\n"
    assert (tree.base, tree.origin, tree.label) == (base.tip, TreeOrigin.SERIES, "vllm/fast")
    assert git(tree.path, "rev-parse", "HEAD^").stdout == base.tip
    assert folders(paths) == sorted([base.tip[:12], tree.tip[:12]])


def test_two_state_folders_give_the_same_tip(paths, pin_for, progress, series_for, tmp_path):
    series, pin = series_for("fast", "one", "three"), pin_for()
    other = type(paths).of(root=paths.root, state=tmp_path / "other")
    shutil.copytree(paths.archives, other.archives)
    tips = [patched_tree(one, pin, series, progress=progress, source=Source.ARCHIVE).tip for one in (paths, other)]
    assert tips[0] == tips[1]


def test_a_series_that_does_not_apply_makes_no_tree(paths, pin_for, progress, series_for):
    with pytest.raises(SeriesError, match=r"0001-core\.patch"):
        patched_tree(paths, pin_for(), series_for("fast", "zero", "three"), progress=progress, source=Source.ARCHIVE)
    assert not paths.trees.exists()


def test_a_series_of_another_engine_is_refused(paths, pin_for, progress, series_for):
    pin = pin_for(engine=Engine.SGLANG)
    with pytest.raises(TreeError, match="series vllm/fast is for vllm"):
        patched_tree(paths, pin, series_for("fast", "one", "three"), progress=progress)


def test_a_work_tree_keeps_the_users_commits(paths, pin_for, progress, series_for):
    series = series_for("fast", "one", "three")
    tree = work_tree(paths, pin_for(), series, progress=progress, source=Source.ARCHIVE)
    assert (tree.path / "vllm" / "core.py").read_text(encoding="utf-8") == "three\n"
    git(tree.path, "commit", "--quiet", "--allow-empty", "--message", "mine")
    (tree.path / "notes").write_text("mine", encoding="utf-8")
    again = work_tree(paths, pin_for(), series, progress=progress, source=Source.ARCHIVE)
    assert (again.path, again.base) == (tree.path, tree.base)
    assert again.tip == git(tree.path, "rev-parse", "HEAD").stdout != tree.tip
    measured = patched_tree(paths, pin_for(), series, progress=progress, source=Source.ARCHIVE)
    assert measured.tip == tree.tip


def test_a_work_tree_on_another_base_is_refused(paths, pin_for, progress, series_for, upstream):
    series = series_for("fast", "one", "three")
    work_tree(paths, pin_for(), series, progress=progress, source=Source.ARCHIVE)
    with pytest.raises(TreeError, match=r"does not stand on vllm-1\.0 from git"):
        work_tree(paths, pin_for(git_url=str(upstream.path)), series, progress=progress, source=Source.GIT)


def test_a_tree_in_use_can_be_used_twice_but_not_removed(paths, tmp_path):
    refused = pytest.raises(TreeError, match="in use by another harness process")
    with using(paths, [tmp_path]), using(paths, [tmp_path]), refused, removing(paths, tmp_path):
        pytest.fail("it was given away")
    with removing(paths, tmp_path), pytest.raises(TreeError, match="in use"), using(paths, [tmp_path]):
        pytest.fail("it was given away")


def test_a_git_tree_with_a_submodule_can_be_made(paths, pin_for, progress, upstream):
    upstream.git("update-index", "--add", "--cacheinfo", f"160000,{upstream.git('rev-parse', 'HEAD')},third")
    upstream.git("commit", "--quiet", "--message", "submodule")
    upstream.git("tag", "v2.0")
    pin = pin_for(version="2.0", git_url=str(upstream.path))
    tree = base_tree(paths, pin, progress=progress)
    assert base_tree(paths, pin, progress=progress) == tree
