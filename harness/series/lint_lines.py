"""Problems of the lines that a patch adds to one file."""

from __future__ import annotations

from collections.abc import Iterator

from harness.series.patchfile import FileChange
from harness.series.rules import Rules, matches

__all__ = ["line_problems"]

# How far down a header may stand: after a shebang line and an encoding line.
HEADER_LINES = 4


def line_problems(change: FileChange, rules: Rules) -> Iterator[str]:
    """What is wrong with the added lines, each with its place as path:line of the new file."""
    python = change.path.endswith(".py")
    forbidden = [rule for rule in rules.forbidden if matches(change.path, rule.files)]
    forbidden = [rule for rule in forbidden if not matches(change.path, rule.excepted)]
    for line in change.added:
        place = f"{change.path}:{line.number}"
        yield from (f"{place}: {problem}" for problem in _spaces(line.text, python=python))
        if python and rules.columns and len(line.text) > rules.columns and "noqa: E501" not in line.text:
            yield f"{place}: is {len(line.text)} columns wide, the engine allows {rules.columns}"
        refused = [rule for rule in forbidden if rule.pattern.search(line.text)]
        yield from (f"{place}: {line.text.strip()!r} is not allowed: {rule.instead}" for rule in refused)
    if change.open_end and change.added:
        yield f"{change.path}: the last line has no line feed"
    if python and change.old is None and change.added:
        top = [line.text for line in change.added[:HEADER_LINES]]
        absent = [line for line in rules.spdx if line not in top]
        if absent:
            yield f"{change.path}: a new file must start with {' and '.join(repr(line) for line in absent)}"


def _spaces(text: str, *, python: bool) -> Iterator[str]:
    if text.endswith("\r"):
        yield "ends with a carriage return"
    elif text != text.rstrip():
        yield "has space at its end"
    indent = text[: len(text) - len(text.lstrip())]
    if python and "\t" in indent:
        yield "is indented with a tab"
    elif " \t" in indent:
        yield "has a space before a tab in its indentation"
