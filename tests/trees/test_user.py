from __future__ import annotations

import pytest

from harness.errors import TreeError, UnknownTreeError
from harness.git import git
from harness.trees.user import user_tree
from harness.vocabulary import Source, TreeOrigin


def test_a_ref_of_the_mirror_gets_a_tree_of_its_own(paths, pin_for, progress, upstream):
    tree = user_tree(paths, pin_for(), "main", progress=progress, mirror=upstream.path)
    assert (tree.path / "vllm" / "core.py").read_text(encoding="utf-8") == "two\n"
    assert (tree.tip, tree.origin, tree.label) == (upstream.git("rev-parse", "main"), TreeOrigin.REF, "main")
    assert tree.path == paths.trees / "vllm" / tree.tip[:12]
    assert tree.base == upstream.git("rev-parse", "v1.0^{commit}")
    assert tree.changes is None


def test_a_branch_that_was_made_in_a_tree_is_found(paths, pin_for, progress, upstream):
    tree = user_tree(paths, pin_for(), "main", progress=progress, mirror=upstream.path)
    git(tree.path, "branch", "mine")
    assert user_tree(paths, pin_for(), "mine", progress=progress, source=Source.ARCHIVE).tip == tree.tip


def test_an_unknown_name_offers_the_nearest(paths, pin_for, progress, upstream):
    with pytest.raises(UnknownTreeError, match=r"'mainn' is no ref of vllm.*and no folder\. Did you mean 'main'"):
        user_tree(paths, pin_for(), "mainn", progress=progress, mirror=upstream.path)


def test_a_clean_checkout_is_used_where_it_lies(paths, pin_for, progress, upstream):
    tree = user_tree(paths, pin_for(), str(upstream.path), progress=progress, source=Source.ARCHIVE)
    assert (tree.path, tree.origin, tree.changes) == (upstream.path, TreeOrigin.PATH, None)
    assert tree.tip == upstream.git("rev-parse", "HEAD")
    assert tree.source is Source.ARCHIVE


def changes_of(paths, pin, progress, checkout):
    return user_tree(paths, pin, str(checkout), progress=progress, source=Source.ARCHIVE).changes


def test_every_kind_of_change_gives_another_hash(paths, pin_for, progress, upstream):
    pin = pin_for()
    core = upstream.path / "vllm" / "core.py"
    seen = []
    core.write_text("edited\n", encoding="utf-8")
    seen.append(changes_of(paths, pin, progress, upstream.path))
    core.chmod(0o755)
    seen.append(changes_of(paths, pin, progress, upstream.path))
    new = upstream.path / "new.py"
    new.write_text("x\n", encoding="utf-8")
    seen.append(changes_of(paths, pin, progress, upstream.path))
    upstream.git("add", "--all")
    new.write_text("y\n", encoding="utf-8")
    seen.append(changes_of(paths, pin, progress, upstream.path))
    new.unlink()
    new.symlink_to("vllm")
    seen.append(changes_of(paths, pin, progress, upstream.path))
    core.unlink()
    seen.append(changes_of(paths, pin, progress, upstream.path))
    assert None not in seen
    assert len(set(seen)) == len(seen)


def test_the_hash_does_not_depend_on_staging_or_the_users_diff_settings(paths, pin_for, progress, upstream):
    (upstream.path / "vllm" / "core.py").write_text("edited\n", encoding="utf-8")
    before = changes_of(paths, pin_for(), progress, upstream.path)
    upstream.git("add", "--all")
    upstream.git("config", "diff.noprefix", "true")
    upstream.git("config", "status.showUntrackedFiles", "no")
    upstream.git("config", "diff.external", "/bin/false")
    assert changes_of(paths, pin_for(), progress, upstream.path) == before


def test_ignored_files_are_no_changes(paths, pin_for, progress, upstream):
    (upstream.path / ".git" / "info" / "exclude").write_text("*.so\n", encoding="utf-8")
    (upstream.path / "vllm" / "_C.so").touch()
    assert changes_of(paths, pin_for(), progress, upstream.path) is None


def test_a_checkout_of_another_engine_is_refused(paths, pin_for, progress, upstream):
    upstream.git("rm", "--quiet", "-r", "vllm")
    upstream.commit({"python/sglang/__init__.py": ""})
    with pytest.raises(TreeError, match="is not a checkout of vllm: it looks like sglang"):
        user_tree(paths, pin_for(), str(upstream.path), progress=progress, source=Source.ARCHIVE)


def test_a_folder_that_is_no_checkout_is_refused(paths, pin_for, progress, tmp_path):
    (tmp_path / "plain" / "vllm").mkdir(parents=True)
    with pytest.raises(TreeError, match="is not a git checkout"):
        user_tree(paths, pin_for(), str(tmp_path / "plain"), progress=progress, source=Source.ARCHIVE)


def test_a_folder_inside_a_checkout_is_refused_with_the_right_path(paths, pin_for, progress, upstream):
    with pytest.raises(TreeError, match=f"inside the checkout {upstream.path}"):
        user_tree(paths, pin_for(), str(upstream.path / "vllm"), progress=progress, source=Source.ARCHIVE)


@pytest.mark.parametrize("what", ["/nonexistent/checkout", "./nonexistent", "~/nonexistent"])
def test_a_path_that_is_not_there_is_not_taken_for_a_ref(paths, pin_for, progress, what):
    with pytest.raises(UnknownTreeError, match="is not a folder"):
        user_tree(paths, pin_for(), what, progress=progress, source=Source.ARCHIVE)
