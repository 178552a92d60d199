"""Carry patches one by one into a work tree with git am, 3-way and under the new names of moved files."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from harness.drift.moves import find_moves, follow
from harness.errors import PortError
from harness.git import GitCommandError, git, git_bytes
from harness.port.state import PortState, write_state
from harness.series.apply import AM_COMMAND
from harness.series.isolated import isolated
from harness.series.patchfile import parse_patch

__all__ = ["Stopped", "carry", "go_on", "markers"]

# The line between the two sides is a heading's underline in a text file too, so it counts only together with another one.
SIDE = re.compile(rb"^(<{7} |>{7} |\|{7} )", re.MULTILINE)
MARKER = re.compile(rb"^(<{7} |={7}$|>{7} |\|{7} )", re.MULTILINE)
FEED = b"\n"
SHOWN = 10  # files named in a message


class Stopped(Exception):  # noqa: N818 - no error: it is a person's turn
    """A patch waits in the work tree; `conflicts` are `file:line` of its conflict markers, or what git said."""

    def __init__(self, patch: str, conflicts: tuple[str, ...]) -> None:
        super().__init__(patch)
        self.patch = patch
        self.conflicts = conflicts


def carry(tree: Path, folder: Path, state: PortState) -> PortState:
    """Apply the patches from `state.next` on; `folder` has the series' patch files. The state is stored after each.

    Raises Stopped when one leaves conflicts in the tree.
    """
    while state.next < len(state.patches):
        name = state.patches[state.next]
        content, moves = _followed(tree, name, (folder / name).read_bytes(), state.old)
        state = replace(state, moves=(*state.moves, *(move for move in moves if move not in state.moves)))
        file = Path(tree, git(tree, "rev-parse", "--git-path", "upkernel-port.patch").stdout).resolve()
        file.write_bytes(content)
        try:
            git(tree, *AM_COMMAND, str(file))
        except GitCommandError as error:
            write_state(tree, replace(state, waiting=True))
            raise Stopped(name, _conflicts(tree, error)) from error
        state = _done(tree, state)
    return state


def go_on(tree: Path, state: PortState, *, skip: bool = False) -> PortState:
    """Make the commit of what a person made of the patch that waits, or leave it out (`skip`).

    Raises PortError with file and line of conflict markers that are left, and with the names of files that no commit has.
    """
    if not state.waiting:
        return state
    started = Path(tree, git(tree, "rev-parse", "--git-path", "rebase-apply").stdout).is_dir()
    if skip:
        if started:
            git(tree, "am", "--skip")
        return _done(tree, state)
    left = markers(tree, [*_names(tree, "diff", "--name-only", "-z", state.head), *_unmerged(tree)])
    if left:
        raise PortError(f"conflict markers are left in {tree}; solve them, then --continue again:\n  " + "\n  ".join(left))
    untracked = _names(tree, "ls-files", "--others", "--exclude-standard", "-z")
    if untracked:
        names = "\n  ".join(untracked[:SHOWN])
        raise PortError(f"{tree} has files that the port would not have; `git add` or delete them:\n  {names}")
    one_sided = _one_sided(tree)
    if one_sided:
        raise PortError(
            "only one side has these files; say which is right with `git add` or `git rm`, then --continue again:\n  "
            + "\n  ".join(one_sided)
        )
    git(tree, "add", "--update")
    changed = _names(tree, "diff", "--cached", "--name-only", "-z", "HEAD")
    if started and not changed:
        raise PortError(
            f"nothing in {tree} has changed, so {state.patches[state.next]} would be lost. Make its change by hand, or leave "
            "the patch out with --skip"
        )
    if started:
        git(tree, "am", "--continue", "--committer-date-is-author-date")
    elif changed:  # the person ended it by hand, and went on to change files
        names = "\n  ".join(changed[:SHOWN])
        raise PortError(f"{tree} has changes that no commit has; commit them, then --continue again:\n  {names}")
    return _done(tree, state)


def _done(tree: Path, state: PortState) -> PortState:
    state = state.advanced(_head(tree))
    write_state(tree, state)
    return state


def markers(tree: Path, names: list[str]) -> list[str]:
    """`file:line` of every conflict marker in these files of the tree."""
    found = []
    for name in sorted(set(names)):
        path = tree / name
        if path.is_file() and not path.is_symlink() and SIDE.search(content := path.read_bytes()):
            found += [f"{name}:{content.count(FEED, 0, match.start()) + 1}" for match in MARKER.finditer(content)]
    return found


def _followed(tree: Path, name: str, content: bytes, old: str) -> tuple[bytes, list[tuple[str, str | None]]]:
    """The patch under the names that its files have in the tree, and which of them are others now."""
    wanted = {change.old for change in parse_patch(name, content).changes if change.old is not None}
    missing = wanted - set(_names(tree, "--literal-pathspecs", "ls-files", "-z", "--", *sorted(wanted)))
    if not missing:
        return content, []
    with isolated(tree) as here:
        here.git("update-ref", "--no-deref", "HEAD", _head(tree))
        moves = find_moves(here, old, _head(tree), missing)
    content = follow(content, {move.old: move.new for move in moves if move.new is not None})
    return content, [(move.old, move.new) for move in moves]


def _conflicts(tree: Path, error: GitCommandError) -> tuple[str, ...]:
    unmerged = _unmerged(tree)
    found = markers(tree, unmerged)
    marked = {place.rpartition(":")[0] for place in found}
    # a file that one side deleted has no markers
    one_sided = _one_sided(tree)
    found += [f"{name}: {'gone on one side' if name in one_sided else 'binary'}" for name in unmerged if name not in marked]
    return tuple(found) or tuple(line for line in error.stderr.splitlines() if line.startswith("error:"))


def _unmerged(tree: Path) -> list[str]:
    return sorted(set(_names(tree, "diff", "--name-only", "--diff-filter=U", "-z")))


def _one_sided(tree: Path) -> list[str]:
    """Unmerged files that the other pin has and the patch deletes, or the other way round."""
    stages: dict[str, set[str]] = {}
    for entry in _names(tree, "ls-files", "--unmerged", "-z"):
        head, _, name = entry.partition("\t")
        stages.setdefault(name, set()).add(head.split()[2])
    return sorted(name for name, have in stages.items() if not {"2", "3"} <= have)


def _names(tree: Path, *words: str) -> list[str]:
    return [os.fsdecode(name) for name in git_bytes(tree, *words).split(b"\0") if name]


def _head(tree: Path) -> str:
    return git(tree, "rev-parse", "--verify", "HEAD^{commit}").stdout
