"""Turn commits into patch files: a function of base and commits alone, byte for byte."""

from __future__ import annotations

import re
from pathlib import Path

from harness.errors import SeriesError
from harness.git import GitCommandError
from harness.series.isolated import Isolated, isolated
from harness.series.model import Series
from harness.series.store import PatchFile, write_patches

__all__ = ["export_patches", "slug", "write_export"]

# With a user's settings, environment or attributes out of reach, most of this only restates git's defaults: a default may
# change with the version of git. `format.attach=` (empty) would turn attachments on, hence --no-attach, and without the
# prefixes a user's diff.noprefix would write patches that -p1 cannot apply.
SETTINGS = (
    "core.quotePath=true",
    "core.attributesFile=/dev/null",
    "diff.algorithm=histogram",
    "diff.suppressBlankEmpty=false",
    "format.signOff=false",
    "format.coverLetter=false",
    "format.numbered=false",
    "format.notes=false",
    "format.useAutoBase=false",
    "i18n.logOutputEncoding=UTF-8",
    "i18n.commitEncoding=UTF-8",
)
FORMAT_PATCH = (
    *("format-patch", "--zero-commit", "--no-signature", "--full-index", "--abbrev=40", "--keep-subject", "--no-stat"),
    *(
        "--no-attach",
        "--no-thread",
        "--no-to",
        "--no-cc",
        "--no-add-header",
        "--encode-email-headers",
        "--inter-hunk-context=0",
    ),
    *("--no-renames", "-U3", "--src-prefix=a/", "--dst-prefix=b/", "--no-color", "--no-ext-diff", "--no-textconv", "--stdout"),
)
SLUG_LENGTH = 60


def export_patches(worktree: Path, base: str, tip: str) -> tuple[PatchFile, ...]:
    """One patch file for each commit after `base` up to `tip`, oldest first.

    `worktree` may be any repository that has the commits; nothing in it changes. Raises SeriesError when the commits are
    not a line from `base` to `tip`, or one of them cannot be a patch (a merge, an empty commit).
    """
    with isolated(worktree) as here:
        commits = _line(here, base, tip)
        return tuple(_export(here, number, commit) for number, commit in enumerate(commits, start=1))


def write_export(series: Series, patches: tuple[PatchFile, ...], pin: str | None = None) -> None:
    """Make these the patches of the series (of its port to the pin of version `pin`), all of them or none.

    Raises SeriesError when they cannot be written; the old files are then still there.
    """
    directory = series.directory
    if pin is not None and pin != series.pin:
        directory = directory / "ports" / pin
        directory.mkdir(parents=True, exist_ok=True)
    write_patches(directory, patches)


def slug(subject: str) -> str:
    """Name a file after a subject: `[Kernel][Perf] Faster x` gives kernel-perf-faster-x, at most 60 letters of whole words."""
    words: list[str] = re.findall(r"[a-z0-9]+", subject.lower()) or ["patch"]
    name = words[0][:SLUG_LENGTH]
    for word in words[1:]:
        if len(name) + 1 + len(word) > SLUG_LENGTH:
            break
        name += f"-{word}"
    return name


def _line(here: Isolated, base: str, tip: str) -> list[str]:
    try:
        here.git("merge-base", "--is-ancestor", base, tip)
    except GitCommandError as error:
        if error.status != 1:
            raise
        raise SeriesError(
            f"{tip[:12]} does not stand on the base {base[:12]}: rebase the commits onto it, then export again"
        ) from error
    merges = here.git("rev-list", "--merges", f"{base}..{tip}").stdout.split()
    if merges:
        raise SeriesError(f"commit {merges[0][:12]} is a merge, which cannot be a patch: rebase the commits into one line")
    commits = here.git("rev-list", "--reverse", f"{base}..{tip}").stdout.split()
    if not commits:
        raise SeriesError(f"there are no commits after the base {base[:12]}: commit your change, then export again")
    return commits


def _export(here: Isolated, number: int, commit: str) -> PatchFile:
    settings = (word for setting in SETTINGS for word in ("-c", setting))
    content = here.git_bytes(*settings, *FORMAT_PATCH, "-1", commit)
    subject = here.git("show", "--no-patch", "--format=%s", commit).stdout
    if not content:
        raise SeriesError(f"commit {commit[:12]} ({subject}) changes no file: drop it, or give it its change")
    return PatchFile(name=f"{number:04d}-{slug(subject)}.patch", content=content)
