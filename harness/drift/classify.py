"""The state of each patch of a stack on one commit: tried exactly, then 3-way, then backwards, then under new names."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from harness.drift.hunks import refused
from harness.drift.model import Conflict, Move, PatchDrift
from harness.drift.moves import find_moves, follow
from harness.git import GitCommandError
from harness.series.apply import AM_COMMAND, head, materialise
from harness.series.failures import complaints
from harness.series.isolated import Isolated, isolated
from harness.series.patchfile import PatchText, parse_patch
from harness.vocabulary import DriftState

__all__ = ["StackPatch", "classify"]

StackPatch = tuple[str, Path]  # the series that it belongs to, and the file


def classify(repository: Path, commit: str, patches: Sequence[StackPatch], *, old: str) -> tuple[PatchDrift, ...]:
    """Try the patches, in order, on a commit. A patch that cannot be carried over is left out for those after it.

    `repository` has `commit` and `old`, the commit that the patches were made for with all of them applied: moved files are
    looked up there, and 3-way merges need its files. No worktree and no branch is touched.
    """
    found = []
    with isolated(repository) as here:
        here.git("update-ref", "--no-deref", "HEAD", commit)
        here.git("read-tree", "HEAD")
        for series, path in patches:
            found.append(_one(here, series, path, old))
            _tidy(here)
    return tuple(found)


def _one(here: Isolated, series: str, path: Path, old: str) -> PatchDrift:
    content = path.read_bytes()
    patch = parse_patch(path.name, content)
    moves = _moves(here, patch, old)
    names = {move.old: move.new for move in moves if move.new is not None}
    if names:
        content = follow(content, names)
        patch = parse_patch(path.name, content)
    state, conflicts = _state(here, patch, content)
    if not moves or state is DriftState.LANDED:
        return PatchDrift(series, path.name, patch.subject, state, conflicts)
    followed = state if names else None
    return PatchDrift(series, path.name, patch.subject, DriftState.TARGET_GONE, conflicts, moves, followed)


def _moves(here: Isolated, patch: PatchText, old: str) -> tuple[Move, ...]:
    wanted = {change.old for change in patch.changes if change.old is not None}
    there = here.git_bytes("ls-files", "-z", "--", *sorted(wanted)).split(b"\0")
    missing = wanted - {name.decode("utf-8", "surrogateescape") for name in there}
    return find_moves(here, old, head(here), missing) if missing else ()


def _state(here: Isolated, patch: PatchText, content: bytes) -> tuple[DriftState, tuple[Conflict, ...]]:
    exact = not complaints(here, content)
    before = head(here)
    materialise(here, patch)
    file = here.path / ".git" / "upkernel.patch"
    file.write_bytes(content)
    try:
        here.git(*AM_COMMAND, str(file))
    except GitCommandError:
        unmerged = set(
            here.git_bytes("diff", "--name-only", "--diff-filter=U", "-z").decode("utf-8", "replace").split("\0")
        ) - {""}
        _tidy(here)
        if not complaints(here, content, "--reverse"):
            return DriftState.LANDED, ()
        return DriftState.CONFLICT, _conflicts(refused(here, content), unmerged)
    if head(here) == before:  # the 3-way merge found that nothing was left to do
        return DriftState.LANDED, ()
    return (DriftState.CLEAN if exact else DriftState.CLEAN_3WAY), ()


def _conflicts(refusals: tuple[Conflict, ...], unmerged: set[str]) -> tuple[Conflict, ...]:
    """What the 3-way merge left to a person; all that was refused where there was none, for want of the old files."""
    if not unmerged:
        return refusals
    known = {one.path for one in refusals}
    left = [one for one in refusals if one.path in unmerged]
    return (*left, *(Conflict(path, (), "a 3-way merge leaves a conflict") for path in sorted(unmerged - known)))


def _tidy(here: Isolated) -> None:
    """An index as HEAD and an empty work tree, whatever a failed patch left."""
    for left in here.path.iterdir():
        if left.name != ".git":
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    shutil.rmtree(here.path / ".git" / "rebase-apply", ignore_errors=True)
    here.git("read-tree", "--reset", "HEAD")
