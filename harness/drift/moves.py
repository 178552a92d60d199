"""Where files went that a patch changes: found by content, and a patch carried to the new names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from harness.drift.model import Move
from harness.series.isolated import Isolated

__all__ = ["find_moves", "follow"]

LEAST = 40  # percent of a file that must be left; git's own 50 misses files whose imports were rewritten
SHORT = 3  # bytes of a line that any file may have, such as a bracket
HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def find_moves(here: Isolated, old: str, new: str, paths: Iterable[str]) -> tuple[Move, ...]:
    """Look for files of commit `old` that commit `new` lacks among those that `new` has and `old` lacks.

    Both commits must be in `here`. Leaves the index at HEAD.
    """
    wanted = sorted(paths)
    before = _entries(here, old, wanted)
    found: dict[str, Move] = {}
    if before:
        # Only the wanted files on the one side and only new ones on the other, so that the search for renames stays short
        # and a file that was there before cannot be taken for the moved one.
        left = _tree(here, before)
        added = here.git_bytes("diff", "--name-only", "--no-renames", "--diff-filter=A", "-z", old, new)
        names = [name.decode("utf-8", "surrogateescape") for name in added.split(b"\0") if name]
        right = _tree(here, _entries(here, new, names))
        words = ("diff-tree", "-r", "-z", "--name-status", "--diff-filter=R", "-l0", f"--find-renames={LEAST}%")
        told = here.git_bytes(*words, left, right).split(b"\0")
        for status, was, now in zip(told[0::3], told[1::3], told[2::3], strict=False):
            path = was.decode("utf-8", "surrogateescape")
            found[path] = Move(path, now.decode("utf-8", "surrogateescape"), int(status[1:]))
        for path in wanted:
            if path not in found:
                found |= _grown(here, old, new, path, names)
    return tuple(found.get(path, Move(path, None)) for path in wanted)


def _grown(here: Isolated, old: str, new: str, path: str, names: list[str]) -> dict[str, Move]:
    """A file of the same name that has most of the old one's lines, and so many more that git does not see it."""
    was = _lines(here, old, path)
    kept = {}
    for name in names:
        if was and PurePosixPath(name).name == PurePosixPath(path).name:
            left = was & _lines(here, new, name)
            kept[name] = 100 * left.total() // was.total()
    best = max(kept, key=kept.__getitem__, default=None)
    return {path: Move(path, best, kept[best])} if best is not None and kept[best] >= LEAST else {}


def _lines(here: Isolated, commit: str, path: str) -> Counter[bytes]:
    """The lines of a file that say something, with how often they occur; none where there is no such file."""
    if not _entries(here, commit, [path]):
        return Counter()
    content = here.git_bytes("cat-file", "blob", f"{commit}:{path}")
    return Counter(stripped for line in content.split(b"\n") if len(stripped := line.strip()) > SHORT)


def follow(content: bytes, moves: Mapping[str, str]) -> bytes:
    """The patch with the names of moved files replaced where it names the file that it changes; its lines stay.

    An import of a moved module inside a changed line is for a person to see to.
    """
    lines = content.split(b"\n")
    index = 0
    current: tuple[bytes, bytes] | None = None
    renamed = {old.encode("utf-8", "surrogateescape"): new.encode("utf-8", "surrogateescape") for old, new in moves.items()}
    while index < len(lines):
        line = lines[index]
        if line.startswith(b"diff --git "):
            current = next(((old, new) for old, new in renamed.items() if line == b"diff --git a/%s b/%s" % (old, old)), None)
            if current:
                lines[index] = b"diff --git a/%s b/%s" % (current[1], current[1])
        elif current and line in {b"--- a/%s" % current[0], b"+++ b/%s" % current[0]}:
            lines[index] = line[:6] + current[1]
        elif match := HUNK.match(line):
            # past the hunk by its counts: a changed line may look like a header
            left_old, left_new = int(match[1] or 1), int(match[2] or 1)
            while left_old > 0 or left_new > 0:
                index += 1
                mark = lines[index][:1]
                left_old -= mark in {b"-", b" ", b""}
                left_new -= mark in {b"+", b" ", b""}
        index += 1
    return b"\n".join(lines)


def _entries(here: Isolated, commit: str, paths: list[str]) -> bytes:
    """Mode, hash and path, as `git update-index` reads them, of those paths that are files of the commit."""
    wanted = {path.encode("utf-8", "surrogateescape") for path in paths}
    listed = here.git_bytes("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")
    kept = [entry for entry in listed if entry and entry.split(b"\t", 1)[1] in wanted and entry.split()[1] == b"blob"]
    return b"".join(entry + b"\0" for entry in kept)


def _tree(here: Isolated, entries: bytes) -> str:
    """A tree object of nothing but these entries."""
    here.git("read-tree", "--empty")
    here.git("update-index", "-z", "--index-info", stdin=entries)
    tree = here.git("write-tree").stdout
    here.git("read-tree", "HEAD")
    return tree
