"""Worktrees: one folder per commit, complete or not there at all, and never with changes nobody asked for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from harness.errors import TreeError
from harness.git import GitCommandError, git, git_bytes
from harness.paths import Paths
from harness.pins.model import Pin
from harness.progress import Progress
from harness.series.apply import build_tip, stack_patches
from harness.series.model import Series
from harness.series.verify import own_base
from harness.trees.bases import Base, ensure_base
from harness.trees.model import Tree
from harness.trees.repository import locked, repository
from harness.vocabulary import Engine, Source, TreeOrigin

__all__ = [
    "IMPORT_ROOTS",
    "TEMPORARY",
    "WORK",
    "base_of",
    "base_tree",
    "changed_files",
    "make_worktree",
    "patched_tree",
    "prune",
    "tree_of",
    "work_tree",
    "worktree",
]

# Folder of the repository that goes on the import path.
IMPORT_ROOTS = {Engine.VLLM: "", Engine.SGLANG: "python", Engine.FLASHINFER: ""}

TEMPORARY = ".making-"
WORK = "work-"
NAMED = 12  # digits of the tip's hash in the folder's name
SHOWN = 10  # files named in a message


def base_of(paths: Paths, pin: Pin, *, progress: Progress, mirror: Path | None = None, source: Source | None = None) -> Base:
    """The pin's base commit in the engine's repository, without a worktree. Arguments and errors as `ensure_base`."""
    with locked(paths, pin.engine, progress):
        return ensure_base(paths, pin, progress, mirror=mirror, source=source)


def base_tree(paths: Paths, pin: Pin, *, progress: Progress, mirror: Path | None = None, source: Source | None = None) -> Tree:
    """The worktree of the pin itself.

    Raises TreeError (in use by another process, changed by hand, tag is not the pinned commit), ArchiveError, PinError.
    """
    with locked(paths, pin.engine, progress):
        base = ensure_base(paths, pin, progress, mirror=mirror, source=source)
        path = worktree(paths, pin.engine, base.commit, progress)
    return tree_of(pin, path, base, tip=base.commit, origin=TreeOrigin.BASE, label="")


def patched_tree(
    paths: Paths, pin: Pin, series: Series, *, progress: Progress, mirror: Path | None = None, source: Source | None = None
) -> Tree:
    """The worktree of the pin with the series applied, after every series that it stands on.

    Raises SeriesError, naming patch, file and hunk, and what `base_tree` raises.
    """
    if series.engine is not pin.engine:
        raise TreeError(f"series {series.id} is for {series.engine}, so it cannot be applied to {pin.name}")
    with locked(paths, pin.engine, progress):
        base = ensure_base(paths, pin, progress, mirror=mirror, source=source)
        tip = build_tip(repository(paths, pin.engine), base.commit, stack_patches(series, pin.version))
        path = worktree(paths, pin.engine, tip, progress)
    return tree_of(pin, path, base, tip=tip, origin=TreeOrigin.SERIES, label=series.id)


def work_tree(
    paths: Paths, pin: Pin, series: Series, *, progress: Progress, mirror: Path | None = None, source: Source | None = None
) -> Tree:
    """The worktree in which a person works on the series, made with its patches applied when there is none.

    It is apart from the trees that are measured, so it may have new commits and changes, and is never touched again: `tip`
    is its HEAD. Raises TreeError when it stands on another base, and what `patched_tree` raises.
    """
    with locked(paths, pin.engine, progress):
        base = ensure_base(paths, pin, progress, mirror=mirror, source=source)
        repo = repository(paths, pin.engine)
        path = paths.trees / pin.engine / f"{WORK}{series.name}"
        if not path.exists():
            # a series that has just been started has no patches of its own yet
            tip = own_base(repo, base.commit, series, pin)
            if series.patches:
                tip = build_tip(repo, base.commit, stack_patches(series, pin.version))
            make_worktree(paths, pin.engine, tip, path, progress)
        tip = git(path, "rev-parse", "--verify", "HEAD^{commit}").stdout
        if git(repo, "rev-list", "--count", f"{tip}..{base.commit}").stdout != "0":
            raise TreeError(
                f"the work tree {path} does not stand on {pin.name} from {base.source} ({base.commit[:NAMED]}). "
                "Export what you need of it, then delete the folder: it is made again."
            )
    return tree_of(pin, path, base, tip=tip, origin=TreeOrigin.SERIES, label=series.id)


def worktree(paths: Paths, engine: Engine, commit: str, progress: Progress) -> Path:
    """The engine's worktree at a commit (its full hash) of its repository, made when it is not there. Call with the lock held.

    Raises TreeError when it is there and has other content than the commit.
    """
    path = paths.trees / engine / commit[:NAMED]
    if path.exists():
        _verify(path, commit)
    else:
        make_worktree(paths, engine, commit, path, progress)
    return path


def make_worktree(paths: Paths, engine: Engine, commit: str, path: Path, progress: Progress) -> None:
    """Check the commit out beside its place and move it there when it is complete. Call with the lock held."""
    repo = repository(paths, engine)
    prune(paths, engine)
    path.parent.mkdir(parents=True, exist_ok=True)
    # named for the process: the git of one that was killed may still be writing into its own
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    with progress.step(f"{engine} {path.name}: making the tree"):
        try:
            git(repo, "worktree", "add", "--quiet", "--detach", str(temporary), commit)
            # not `git worktree move`, which refuses trees with submodules
            temporary.rename(path)
            git(repo, "worktree", "repair", str(path))
        finally:
            if temporary.exists():
                shutil.rmtree(temporary, ignore_errors=True)


def prune(paths: Paths, engine: Engine) -> None:
    """Clear away half-made trees of killed processes, and git's records of trees that are gone. Call with the lock held."""
    folder = paths.trees / engine
    for half in folder.glob(f"{TEMPORARY}*"):
        shutil.rmtree(half, ignore_errors=True)  # the next call finds what is left
    repo = paths.repositories / f"{engine}.git"
    if not repo.is_dir():
        return
    whole = [str(path) for path in sorted(folder.iterdir()) if (path / ".git").is_file()] if folder.is_dir() else []
    if whole:
        # A kill between the two steps of a move leaves a record that points at the old name.
        git(repo, "worktree", "repair", *whole)
    git(repo, "worktree", "prune", "--expire=now")


def changed_files(path: Path, *, user_config: bool = False) -> tuple[str, ...]:
    """Files of a checkout that are not as committed, untracked ones included, ignored ones not. Raises TreeError."""
    words = ("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=none")
    try:
        listing = git_bytes(path, *words, user_config=user_config)
    except GitCommandError as error:
        raise TreeError(f"{path} cannot be read as a git checkout: {error}") from error
    return tuple(os.fsdecode(entry[3:]) for entry in listing.split(b"\0") if entry)


def _verify(path: Path, commit: str) -> None:
    advice = "Keep what you need of it, then delete the folder: the next run makes it again."
    try:
        tip = git(path, "rev-parse", "--verify", "HEAD^{commit}").stdout
    except GitCommandError as error:
        raise TreeError(f"the tree {path} is damaged: {error}\n{advice}") from error
    if tip != commit:
        raise TreeError(
            f"the tree {path} must be at commit {commit}, but is at {tip}: somebody committed in it. If that is work on a "
            f"series, write it back first (nox -s export). {advice}"
        )
    changed = changed_files(path)
    if changed:
        more = f"\n  and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        names = "".join(f"\n  {name}" for name in changed[:SHOWN])
        raise TreeError(
            f"the tree {path} has uncommitted changes, so it is not what it would be measured as:{names}{more}\n{advice}"
        )


def tree_of(pin: Pin, path: Path, base: Base, *, tip: str, origin: TreeOrigin, label: str) -> Tree:
    """The description of a worktree."""
    return Tree(
        engine=pin.engine,
        pin=pin.version,
        path=path,
        import_root=IMPORT_ROOTS[pin.engine],
        base=base.commit,
        tip=tip,
        source=base.source,
        origin=origin,
        label=label,
    )
