"""The last upstream commit at which a series applied, found in a repository that has the history."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.drift.model import LastGood
from harness.errors import SeriesError
from harness.git import GitCommandError, git
from harness.series.apply import build_tip
from harness.series.patchfile import read_patch
from harness.trees.repository import resolve

__all__ = ["borrowed", "last_good"]


@contextmanager
def borrowed(history: Path, *others: Path) -> Iterator[Path]:
    """A bare repository that reads the objects of others and keeps what is made to itself: a mirror is not written to.

    `history` says where history ends; the others may lack parents of their commits, which do not count.
    """
    with tempfile.TemporaryDirectory(prefix="upkernel-drift-", ignore_cleanup_errors=True) as folder:
        path = Path(folder)
        git(path, "init", "--quiet", "--bare", "--template=", ".")
        places = [Path(one, git(one, "rev-parse", "--git-path", "objects").stdout).resolve() for one in (history, *others)]
        (path / "objects" / "info").mkdir(exist_ok=True)
        (path / "objects" / "info" / "alternates").write_text("".join(f"{one}\n" for one in places), encoding="utf-8")
        shallow = Path(history, git(history, "rev-parse", "--git-path", "shallow").stdout)
        if shallow.is_file():
            shutil.copy(shallow, path / "shallow")
        yield path


def last_good(repository: Path, base: str, tip: str, patches: Sequence[Path]) -> LastGood | str:
    """Walk back from `tip` over the first-parent commits that change a file of the patches, to where these applied.

    `base` is the release that the patches were made for. Between two commits that touch the patches' files nothing changes, so
    this is exact without a bisection's belief that what is broken stays broken. The answer is a text when there is no
    history to walk.
    """
    meeting = _merge_base(repository, base, tip)
    if meeting is None:
        return f"{base[:12]} and {tip[:12]} have no common history here: a mirror with whole history is needed"
    names = sorted({name for file in patches for one in read_patch(file).changes for name in (one.old, one.new) if name})
    listed = git(
        repository, "--literal-pathspecs", "rev-list", "--first-parent", f"{meeting}..{tip}", "--", *names
    ).stdout.split()
    for looked, commit in enumerate(listed, start=1):
        parent = resolve(repository, f"{commit}^1")
        if parent is not None and _applies(repository, parent, patches):
            return LastGood(parent, commit, _subject(repository, commit), looked)
    ended = listed[-1] if listed else meeting
    return LastGood(None, ended, _subject(repository, ended), len(listed))


def _merge_base(repository: Path, one: str, other: str) -> str | None:
    """The newest commit that both stand on, None when there is none."""
    try:
        return git(repository, "merge-base", one, other).stdout
    except GitCommandError as error:
        if error.status != 1:  # 1 is git's way to say that there is none
            raise
        return None


def _applies(repository: Path, commit: str, patches: Sequence[Path]) -> bool:
    try:
        build_tip(repository, commit, patches)
    except SeriesError:
        return False
    return True


def _subject(repository: Path, commit: str) -> str:
    return git(repository, "show", "--no-patch", "--format=%s", commit).stdout
