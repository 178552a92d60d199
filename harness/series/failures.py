"""Say which file and hunk of a patch do not apply, and whether the patch is there already."""

from __future__ import annotations

import re

from harness.git import GitCommandError
from harness.series.isolated import Isolated
from harness.series.patchfile import FileChange, PatchText

__all__ = ["complaints", "explain"]

FAILED = re.compile(r"error: patch failed: (?P<path>.+):(?P<line>\d+)$")
# What git says when there is no hunk to blame, and what it means.
WHOLE_FILE = (
    (re.compile(r"error: (?P<path>.+): does not exist in index$"), "there is no such file in the tree"),
    (
        re.compile(r"error: (?P<path>.+): already exists in (index|working directory)$"),
        "the file it adds is there already",
    ),
    (re.compile(r"error: (?P<path>.+): wrong type$"), "the file is a link or folder now"),
    (re.compile(r"error: the patch applies to '(?P<path>.+)' \(.+\), *$"), "the binary file has other content"),
)


def explain(here: Isolated, patch: PatchText, content: bytes, said: str) -> str:
    """The reasons, one a line, for a patch that `git am` refused on the commit at HEAD; `said` is what it printed.

    Leaves the index at HEAD.
    """
    conflicts = here.git("diff", "--name-only", "--diff-filter=U").stdout.splitlines()
    here.git("read-tree", "HEAD")
    errors = complaints(here, content)
    reasons = _reasons(patch, errors)
    if conflicts:
        reasons.append("a 3-way merge leaves conflicts in " + ", ".join(sorted(set(conflicts))))
    if not reasons:
        # No part of the patch was refused, so the message of git is all there is.
        reasons.append(" ".join(line.strip() for line in (errors or said).splitlines() if line.strip()))
    if errors and not complaints(here, content, "--reverse"):
        reasons.append("it looks already applied: the tree has what it adds")
    return "\n".join(f"  {reason}" for reason in reasons)


def complaints(here: Isolated, content: bytes, *options: str) -> str:
    """What `git apply --check` complains about, "" when the patch applies."""
    try:
        here.git("apply", "--check", "--cached", "--verbose", "--whitespace=nowarn", *options, "-", stdin=content)
    except GitCommandError as error:
        return error.stderr
    return ""


def _reasons(patch: PatchText, errors: str) -> list[str]:
    changes = {change.path: change for change in patch.changes}
    reasons = []
    for line in errors.splitlines():
        if match := FAILED.match(line):
            path = match["path"]
            reasons.append(f"{path}: {_hunk(changes.get(path), int(match['line']))}")
        for pattern, meaning in WHOLE_FILE:
            if match := pattern.match(line):
                reasons.append(f"{match['path']}: {meaning}")
    return reasons


def _hunk(change: FileChange | None, line: int) -> str:
    """Which hunk starts at that line of the old file: git names the line only."""
    hunks = change.hunks if change else []
    for number, hunk in enumerate(hunks, start=1):
        if hunk.old_start == line:
            return f"hunk {number} of {len(hunks)} (line {line}) does not match"
    return f"the hunk at line {line} does not match"
