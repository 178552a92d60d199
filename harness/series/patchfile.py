"""Take a patch file apart: author and date, subject, message, and per file its hunks and added lines."""

from __future__ import annotations

import email
import email.header
import email.policy
import re
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import SeriesError

__all__ = ["AddedLine", "FileChange", "Hunk", "PatchText", "blobs", "parse_patch", "read_patch"]

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")

INDEX = re.compile(r"^index ([0-9a-f]{40})\.\.([0-9a-f]{40})(?: \d+)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class AddedLine:
    """A line that the patch adds, without its line feed; `number` counts from 1 in the new file."""

    number: int
    text: str


@dataclass(slots=True)
class Hunk:
    """`old_start` counts from 1 in the old file."""

    old_start: int
    added: list[AddedLine] = field(default_factory=list)


@dataclass(slots=True)
class FileChange:
    """What the patch does to one file; `old` and `new` are None for a file that is added or deleted."""

    old: str | None
    new: str | None
    hunks: list[Hunk] = field(default_factory=list)
    binary: bool = False
    # True when the last line of the new file has no line feed.
    open_end: bool = False

    @property
    def path(self) -> str:
        return self.new or self.old or ""

    @property
    def added(self) -> list[AddedLine]:
        return [line for hunk in self.hunks for line in hunk.added]


@dataclass(frozen=True, slots=True)
class PatchText:
    """A patch file: `body` is the message without its subject, `changes` in the order of the file."""

    name: str
    author: str
    date: str
    subject: str
    body: str
    changes: tuple[FileChange, ...]


def read_patch(path: Path) -> PatchText:
    """Raises SeriesError when the file is empty or is not what `git format-patch` writes."""
    return parse_patch(path.name, path.read_bytes())


def parse_patch(name: str, content: bytes) -> PatchText:
    """As read_patch. Bytes that are not UTF-8 become surrogate escapes."""
    if not content.strip():
        raise SeriesError(f"{name} is empty")
    head, separator, _ = content.partition(b"\n\n")
    headers = email.message_from_bytes(head + b"\n\n", policy=email.policy.compat32)
    absent = [key for key in ("From", "Date", "Subject") if not headers.get(key)]
    # without From or Date, git would take today's date and the user's name, and the commit would not be the same everywhere
    if not content.startswith(b"From ") or not separator or absent:
        what = f"it has no {' and no '.join(absent)} line" if absent else "it does not start with a From line"
        raise SeriesError(f"{name} is not a patch as `git format-patch` writes it: {what}")
    lines = content.decode("utf-8", "surrogateescape").split("\n")
    start = next((index for index, line in enumerate(lines) if line.startswith("diff --git ")), len(lines))
    after_head = head.count(b"\n") + 2
    body = [line for line in lines[after_head:start] if line != "---"]
    return PatchText(
        name=name,
        author=_decoded(headers["From"]),
        date=_decoded(headers["Date"]),
        subject=" ".join(_decoded(headers["Subject"]).split()),
        body="\n".join(body).strip(),
        changes=tuple(_changes(lines[start:])),
    )


def _decoded(value: str) -> str:
    return str(email.header.make_header(email.header.decode_header(value)))


def _changes(lines: list[str]) -> list[FileChange]:
    changes: list[FileChange] = []
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        if line.startswith("diff --git "):
            changes.append(_named(line))
        elif not changes:
            continue
        elif line.startswith("new file mode"):
            changes[-1].old = None
        elif line.startswith("deleted file mode"):
            changes[-1].new = None
        elif line.startswith("GIT binary patch") or (line.startswith("Binary files ") and line.endswith(" differ")):
            changes[-1].binary = True
        elif match := HUNK.match(line):
            index = _hunk(changes[-1], match, lines, index)
    return changes


def _named(line: str) -> FileChange:
    """From `diff --git a/X b/X`: exports have no renames, so that both names are the same."""
    names = line.removeprefix("diff --git ")
    half = names[: len(names) // 2]
    if half.startswith('"'):
        # git quotes names with control characters, quotes or non-ASCII letters, in the manner of C
        raw = half[1:-1].encode("ascii", "replace").decode("unicode_escape").encode("latin-1")
        half = raw.decode("utf-8", "surrogateescape")
    path = half.removeprefix("a/")
    return FileChange(old=path, new=path)


def _hunk(change: FileChange, match: re.Match[str], lines: list[str], index: int) -> int:
    """Read a hunk's lines by its counts, so that a removed line that looks like a header is not taken for one."""
    old_left = int(match[2] or 1)
    new_left = int(match[4] or 1)
    number = int(match[3])
    hunk = Hunk(old_start=int(match[1]))
    change.hunks.append(hunk)
    while index < len(lines) and (old_left > 0 or new_left > 0):
        mark, text = lines[index][:1], lines[index][1:]
        if mark == "+":
            hunk.added.append(AddedLine(number, text))
        if mark in {"+", " ", ""}:
            new_left -= 1
            number += 1
        if mark in {"-", " ", ""}:
            old_left -= 1
        index += 1
        if index < len(lines) and lines[index].startswith("\\"):
            change.open_end = change.open_end or mark in {"+", " "}
            index += 1
    return index


def blobs(path: Path) -> tuple[tuple[str, str | None, str | None], ...]:
    """Of each file that a patch changes: its path, and git's hash of its content before and after (None: there is no file).

    Raises SeriesError as read_patch, and when an index line is missing.
    """
    changes = read_patch(path).changes
    _, _, text = path.read_text(encoding="utf-8", errors="surrogateescape").partition("\ndiff --git ")
    found = [match.groups() for match in INDEX.finditer(text)]
    if len(found) != len(changes):
        raise SeriesError(f"{path.name} has {len(found)} index lines for {len(changes)} files: export it again")
    return tuple(
        (change.path, old if set(old) != {"0"} else None, new if set(new) != {"0"} else None)
        for change, (old, new) in zip(changes, found, strict=True)
    )
