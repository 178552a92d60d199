"""What is wrong with the patches of a series: messages, files, tests, and the engine's own rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.errors import SeriesError
from harness.series.lint_lines import line_problems
from harness.series.patchfile import PatchText, read_patch
from harness.series.rules import Rules, matches

__all__ = ["lint_patches"]

SIGN_OFF = "signed-off-by"
# Lines at the end of a message that are no description.
TRAILERS = ("co-authored-by:", "reviewed-by:", "acked-by:", "fixes:", "closes:", SIGN_OFF, "link:", "cc:")


def lint_patches(files: Sequence[Path], rules: Rules) -> Iterator[tuple[str, str]]:
    """File name and message of everything that is wrong with the patches of a series."""
    read: list[PatchText] = []
    for file in files:
        try:
            read.append(read_patch(file))
        except SeriesError as error:
            yield file.name, str(error)
    for patch in read:
        for message in (*_message(patch, rules), *_changes(patch, rules)):
            yield patch.name, message
    for number, patch in enumerate(read):
        if _needs_test(patch, rules) and not any(_has_test(other, rules) for other in read[number:]):
            message = f"has no test, and none follows it (a file of {', '.join(rules.tests)})"
            yield patch.name, message


def _message(patch: PatchText, rules: Rules) -> Iterator[str]:
    described = [line for line in patch.body.splitlines() if line.strip() and not line.lower().startswith(TRAILERS)]
    if not described:
        yield "has a subject only: say in the commit message why, and what it changes"
    if SIGN_OFF in f"{patch.subject}\n{patch.body}".lower():
        yield "has a sign-off: the person who submits the patch, and can defend every line of it, adds it"
    if rules.title_prefixes and not patch.subject.startswith(rules.title_prefixes):
        yield f"subject {patch.subject!r} must start with one of {' '.join(rules.title_prefixes)}"


def _changes(patch: PatchText, rules: Rules) -> Iterator[str]:
    if not patch.changes:
        yield "changes no file"
    for change in patch.changes:
        if change.binary:
            yield f"{change.path}: is binary: nobody can review it"
        yield from line_problems(change, rules)


def _needs_test(patch: PatchText, rules: Rules) -> bool:
    return any(not matches(change.path, (*rules.tests, *rules.exempt)) for change in patch.changes)


def _has_test(patch: PatchText, rules: Rules) -> bool:
    return any(change.new and matches(change.path, rules.tests) for change in patch.changes)
