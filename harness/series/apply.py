"""Turn base and series into a commit: the same one in every clone, whatever the user's git is set to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import SeriesError, TreeError
from harness.git import GitCommandError, git
from harness.pins.model import Pin
from harness.series.failures import explain
from harness.series.isolated import Isolated, isolated
from harness.series.model import Series
from harness.series.patchfile import PatchText, parse_patch
from harness.series.reader import patches_for, stack

__all__ = ["AM_COMMAND", "apply_series", "build_tip", "head", "materialise", "stack_patches"]

# The recipe that gave the same tip in two clones at different times (git 2.39); harness.git fixes the committer. Most settings
# are git's own defaults; they are spelled out, because a default may change with the version of git.
SETTINGS = (
    "commit.gpgSign=false",
    "core.autocrlf=false",
    "core.hooksPath=/dev/null",
    "apply.whitespace=nowarn",
    "apply.ignoreWhitespace=no",
    "i18n.commitEncoding=UTF-8",
    "merge.renames=true",
    "merge.conflictStyle=merge",
    "rerere.enabled=false",
    "core.fileMode=true",
)
AM = (
    *("am", "--quiet", "--3way", "--keep-cr", "--keep-non-patch", "--no-scissors", "--no-message-id"),
    *("--no-signoff", "--no-gpg-sign", "--no-rerere-autoupdate", "--committer-date-is-author-date"),
)
# With the file's path after it: one patch onto HEAD.
AM_COMMAND = (*(word for setting in SETTINGS for word in ("-c", setting)), *AM)


def stack_patches(series: Series, pin: str) -> tuple[Path, ...]:
    """Every patch file for that pin's version, those of the series that it stands on first.

    Raises SeriesError when one of them has none.
    """
    return tuple(patch for one in stack(series) for patch in patches_for(one, pin))


def build_tip(repository: Path, base: str, patches: Sequence[Path]) -> str:
    """Apply patch files to the commit `base` and return the new tip's hash. No worktree and no branch is touched.

    `repository` (bare, worktree or clone) has `base` and gets the new commits. A function of `base` and the files alone.
    Raises SeriesError, naming patch, file and hunk.
    """
    with isolated(repository) as here:
        here.git("update-ref", "--no-deref", "HEAD", base)
        here.git("read-tree", "HEAD")
        tip = head(here)
        for patch in patches:
            tip = _am(here, patch, tip)
    return tip


def apply_series(worktree: Path, series: Series, pin: Pin) -> str:
    """Apply a series, after those it stands on, to the clean worktree's HEAD, and return the new tip's hash.

    The branch that HEAD is on moves along, as with git am. The tip is complete before the worktree is touched, so a patch that
    does not apply leaves it as it was. Raises SeriesError, naming patch, file and hunk, and TreeError when the worktree has
    uncommitted changes.
    """
    patches = stack_patches(series, pin.version)
    base = git(worktree, "rev-parse", "--verify", "HEAD^{commit}").stdout
    with isolated(worktree) as here:
        _point(here, worktree, base)
        changed = here.git("status", "--porcelain", "--untracked-files=no").stdout
        if changed:
            raise TreeError(f"{worktree} has uncommitted changes; commit them or put them away:\n{changed}")
        try:
            tip = build_tip(worktree, base, patches)
        except SeriesError as error:
            raise SeriesError(f"{series.id} on {pin.name}: {error}\n{worktree} is as it was.") from error
        _move(here, base, tip)
    git(worktree, "update-ref", "-m", f"apply {series.id}", "HEAD", tip)
    return tip


def head(here: Isolated) -> str:
    return here.git("rev-parse", "--verify", "HEAD^{commit}").stdout


def _am(here: Isolated, path: Path, tip: str) -> str:
    content = path.read_bytes()
    patch = parse_patch(path.name, content)
    if not patch.changes:
        raise SeriesError(f"{path.name} changes no file")
    materialise(here, patch)
    try:
        here.git(*AM_COMMAND, str(path.resolve()))
    except GitCommandError as error:
        reasons = explain(here, patch, content, f"{error.stderr}\n{error.stdout}")
        raise SeriesError(f"{path.name} ({patch.subject}) does not apply to {tip[:12]}:\n{reasons}") from error
    return _one_commit(here, path, patch, tip)


def materialise(here: Isolated, patch: PatchText) -> None:
    """Write the files that the patch names to the work tree: a 3-way merge goes only into files that are there."""
    paths = {name for change in patch.changes for name in (change.old, change.new) if name}
    listed = here.git_bytes("ls-files", "-z", "--", *sorted(paths))
    here.git("checkout-index", "--index", "--force", "--quiet", "-z", "--stdin", stdin=listed)


def _one_commit(here: Isolated, path: Path, patch: PatchText, before: str) -> str:
    tip = head(here)
    if tip == before:
        # git am takes a patch that the 3-way merge finds complete for applied, and goes on without a commit
        raise SeriesError(
            f"{path.name} ({patch.subject}) does not apply to {before[:12]}:\n  it looks already applied: the tree has it"
        )
    parent = here.git("rev-parse", "--verify", "HEAD^").stdout
    if parent != before:
        raise SeriesError(f"{path.name} holds more than one patch; one file is one commit")
    return tip


def _point(here: Isolated, worktree: Path, base: str) -> None:
    """Make the isolated git directory work on a real worktree and its index.

    The engine's own attributes hold there, as they did when it was checked out.
    """
    (here.path / ".git" / "info" / "attributes").unlink()
    index = Path(worktree, git(worktree, "rev-parse", "--git-path", "index").stdout).resolve()
    here.git("update-ref", "--no-deref", "HEAD", base)
    here.environment.update(GIT_DIR=str(here.path / ".git"), GIT_WORK_TREE=str(worktree.resolve()), GIT_INDEX_FILE=str(index))


def _move(here: Isolated, base: str, tip: str) -> None:
    """Bring index and files of the worktree from base to tip; git checks that nothing is in the way before it starts."""
    try:
        here.git("read-tree", "-m", "-u", base, tip)
    except BaseException:
        here.git("read-tree", "--reset", "-u", base)
        raise
