from __future__ import annotations

import argparse

import pytest

from harness.commands import clean
from harness.context import Context
from harness.errors import TreeError
from harness.git import git
from harness.trees import cleaning
from harness.trees.cleaning import DEFAULT, Kind, free, list_items
from harness.trees.use import using
from harness.trees.worktrees import base_tree
from harness.vocabulary import ExitCode, Source

BUSY = "it is in use by another harness process"


@pytest.fixture
def tree(paths, pin_for, progress):
    return base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE)


@pytest.fixture
def filled(paths, tree):
    """A state folder with something of every kind."""
    for folder in (paths.environments / "vllm-cpu", paths.arms / "a", paths.models / "tiny", paths.experiments / "e"):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * 100_000)
    return paths


@pytest.fixture
def run(paths, progress, capsys):
    """The command line's `clean` with these arguments; its exit code and what it printed."""

    def main(*words: str) -> tuple[ExitCode, str]:
        parser = argparse.ArgumentParser()
        clean.configure(parser)
        code = clean.main(parser.parse_args(words), Context(paths, progress))
        return code, capsys.readouterr().out

    return main


def kinds(paths):
    return {item.kind for item in list_items(paths)}


def kept(removals):
    return {removal.item.kind: removal.kept for removal in removals if removal.kept is not None}


def test_everything_is_listed_with_its_size(filled):
    sizes = {item.kind: item.size for item in list_items(filled)}
    assert set(sizes) == set(Kind) - {Kind.WORK}
    assert 100_000 <= sizes[Kind.EXPERIMENTS] < 120_000
    assert sizes[Kind.REPOSITORIES] > 0


def test_a_file_that_two_places_share_counts_once(paths):
    for name in ("one", "two"):
        (paths.environments / name).mkdir(parents=True)
    (paths.environments / "one" / "file").write_bytes(b"x" * 1_000_000)
    (paths.environments / "two" / "file").hardlink_to(paths.environments / "one" / "file")
    assert 1_000_000 <= sum(item.size for item in list_items(paths)) < 1_100_000


def test_without_yes_nothing_is_removed(filled, run):
    before = kinds(filled)
    code, out = run()
    assert code is ExitCode.OK
    assert kinds(filled) == before
    assert "can be freed; add --yes" in out


def test_yes_frees_all_but_experiments(filled, run):
    _, out = run("--yes")
    assert kinds(filled) == {Kind.EXPERIMENTS}
    assert "freed " in out
    assert "\nkept " not in out


def test_only_what_is_named_is_freed(filled, run):
    before = kinds(filled)
    run("--what", "environments", "models", "--yes")
    assert kinds(filled) == before - {Kind.ENVIRONMENTS, Kind.MODELS}


def test_experiments_go_when_they_are_named(filled, run):
    run("--what", "experiments", "--yes")
    assert Kind.EXPERIMENTS not in kinds(filled)
    assert Kind.TREES in kinds(filled)


def test_gits_record_of_a_freed_tree_goes_too(paths, tree, run):
    run("--what", "trees", "--yes")
    assert "detached" not in git(paths.repositories / "vllm.git", "worktree", "list").stdout


def test_a_freed_tree_is_made_again(paths, tree, run, pin_for, progress):
    run("--what", "trees", "--yes")
    assert not tree.path.exists()
    assert base_tree(paths, pin_for(), progress=progress, source=Source.ARCHIVE) == tree


def test_a_dirty_tree_and_its_repository_are_kept_and_named(paths, tree, progress):
    (tree.path / "vllm" / "core.py").write_text("mine\n", encoding="utf-8")
    reasons = kept(free(paths, [item for item in list_items(paths) if item.kind in DEFAULT], progress))
    assert reasons[Kind.TREES] == "it has uncommitted changes: vllm/core.py"
    assert reasons[Kind.REPOSITORIES] == f"its trees are still there: {tree.path.name}"
    assert (tree.path / "vllm" / "core.py").read_text(encoding="utf-8") == "mine\n"


def test_a_tree_with_commits_of_the_users_is_kept(paths, tree, progress):
    git(tree.path, "commit", "--quiet", "--allow-empty", "--message", "mine")
    reasons = kept(free(paths, list_items(paths), progress))
    assert "commits of yours that no branch holds" in reasons[Kind.TREES]
    assert tree.path.is_dir()


def test_a_repository_with_branches_of_the_users_is_kept(paths, tree, progress):
    git(tree.path, "branch", "mine")
    reasons = kept(free(paths, list_items(paths), progress))
    assert reasons == {Kind.REPOSITORIES: "it has branches of yours: mine"}


@pytest.mark.parametrize("kind", Kind)
def test_what_another_process_holds_is_kept_whatever_its_kind(filled, progress, kind):
    (filled.trees / "vllm" / "work-mine").mkdir()
    items = list_items(filled)
    (held,) = (item for item in items if item.kind is kind)
    with using(filled, [held.path]):
        reasons = kept(free(filled, items, progress))
    assert held.path.exists()
    assert reasons.pop(kind) == BUSY
    # all else is gone, but for a repository that still has a tree
    assert set(reasons) == ({Kind.REPOSITORIES} if kind in {Kind.TREES, Kind.WORK} else set())
    assert kept(free(filled, list_items(filled), progress)) == {}, "it goes once nobody holds it"


def test_no_archive_goes_while_one_is_fetched_and_read(filled, progress):
    with using(filled, [filled.archives]):
        assert kept(free(filled, list_items(filled), progress)) == {Kind.ARCHIVES: BUSY}


def test_what_is_kept_is_named(filled, run):
    with using(filled, [filled.models / "tiny"]):
        _, out = run("--yes")
    assert f"\nkept models tiny: {BUSY}\n" in out


def test_without_git_nothing_of_a_persons_is_at_risk_and_the_rest_goes(filled, progress, monkeypatch):
    def no_git(*_, **__):
        raise TreeError("git is not on the PATH")

    monkeypatch.setattr(cleaning, "git", no_git)
    monkeypatch.setattr(cleaning, "changed_files", no_git)
    assert set(kept(free(filled, list_items(filled), progress))) == {Kind.TREES, Kind.REPOSITORIES}


def test_a_half_removed_tree_of_a_killed_process_goes(paths, tree, progress):
    half = tree.path.with_name(f".deleting-{tree.path.name}")
    tree.path.rename(half)
    (half / "vllm" / "core.py").unlink()
    assert kept(free(paths, list_items(paths), progress)) == {}
    assert not half.exists()
