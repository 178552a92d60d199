"""Which hunks of a patch do not apply. `git apply` names only the first of a file, so each is tried alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.drift.model import Conflict, Hunk
from harness.series.failures import WHOLE_FILE, complaints
from harness.series.isolated import Isolated

__all__ = ["refused"]

HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


@dataclass(slots=True)
class _File:
    path: str
    header: list[bytes]
    # (line in the old file, text of the hunk)
    hunks: list[tuple[int, bytes]]


def refused(here: Isolated, content: bytes) -> tuple[Conflict, ...]:
    """What of the patch does not apply to the index of `here`, file by file; empty when all of it does."""
    return tuple(conflict for file in _files(content) if (conflict := _look(here, file)) is not None)


def _look(here: Isolated, file: _File) -> Conflict | None:
    header = b"\n".join(file.header) + b"\n"
    errors = complaints(here, header + b"".join(text for _, text in file.hunks))
    if not errors:
        return None
    for line in errors.splitlines():
        for pattern, meaning in WHOLE_FILE:
            if pattern.match(line):
                return Conflict(file.path, (), meaning)
    failing = [
        Hunk(number, len(file.hunks), start)
        for number, (start, text) in enumerate(file.hunks, start=1)
        if complaints(here, header + text)
    ]
    # Hunks that apply one by one and not together: the last thing that git said is all there is.
    return Conflict(file.path, tuple(failing), "" if failing else errors.strip().splitlines()[-1])


def _files(content: bytes) -> list[_File]:
    files: list[_File] = []
    lines = content.split(b"\n")
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        if line.startswith(b"diff --git "):
            path = line.removeprefix(b"diff --git ")
            files.append(_File(path[: len(path) // 2].removeprefix(b"a/").decode("utf-8", "surrogateescape"), [line], []))
        elif files and (match := HUNK.match(line)):
            end = _end(lines, index, int(match[2] or 1), int(match[3] or 1))
            files[-1].hunks.append((int(match[1]), b"\n".join(lines[index - 1 : end]) + b"\n"))
            index = end
        elif files and not files[-1].hunks:
            files[-1].header.append(line)
    return files


def _end(lines: list[bytes], index: int, old: int, new: int) -> int:
    while index < len(lines) and (old > 0 or new > 0):
        mark = lines[index][:1]
        old -= mark in {b"-", b" ", b""}
        new -= mark in {b"+", b" ", b""}
        index += 1
    while index < len(lines) and lines[index].startswith(b"\\"):  # no line feed at the end of the file
        index += 1
    return index
