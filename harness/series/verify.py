"""Prove that patches and commits say the same: what is exported applies again, and exports to the same bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from harness.errors import SeriesError
from harness.pins.model import Pin
from harness.series.apply import build_tip
from harness.series.export import export_patches
from harness.series.model import Series
from harness.series.reader import patches_for, stack
from harness.series.store import PatchFile

__all__ = ["RoundTrip", "own_base", "prove_export", "round_trip", "stale"]


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The tip that a series makes, and what is not byte-identical when its commits are exported again."""

    tip: str
    stale: tuple[str, ...]


def own_base(repository: Path, base: str, series: Series, pin: Pin) -> str:
    """The commit on which the series' own patches start: the pin's base with every series applied that it is after."""
    below = [patch for one in stack(series)[:-1] for patch in patches_for(one, pin.version)]
    return build_tip(repository, base, below) if below else base


def round_trip(repository: Path, base: str, series: Series, pin: Pin) -> RoundTrip:
    """Apply the series to the pin's base commit and export it again. Raises SeriesError when it does not apply."""
    own = patches_for(series, pin.version)
    below = own_base(repository, base, series, pin)
    tip = build_tip(repository, below, own)
    return RoundTrip(tip, stale(own, export_patches(repository, below, tip)))


def stale(files: Sequence[Path], exported: Sequence[PatchFile]) -> tuple[str, ...]:
    """One line for each file that an export would write differently, name otherwise, add or drop."""
    lines = []
    for file, patch in zip_longest(files, exported):
        if file is None:
            lines.append(f"{patch.name} is missing")
        elif patch is None:
            lines.append(f"{file.name} has no commit any more")
        elif file.name != patch.name:
            lines.append(f"{file.name} would be called {patch.name}")
        elif file.read_bytes() != patch.content:
            lines.append(f"{file.name} differs {_where(file.read_bytes(), patch.content)}")
    return tuple(lines)


def prove_export(repository: Path, base: str, patches: Sequence[PatchFile]) -> str:
    """Apply exported patches to `base` again and return their tip (committer and dates are fixed, so it is another commit).

    Raises SeriesError when they do not apply or do not export to the same bytes: some messages do not survive mail form (a
    subject of several lines, a line `---`, text that looks like a diff). Same bytes on the same base are the same files.
    """
    with tempfile.TemporaryDirectory(prefix="upkernel-export-") as folder:
        files = [Path(folder, patch.name) for patch in patches]
        for file, patch in zip(files, patches, strict=True):
            file.write_bytes(patch.content)
        advice = "Write the commit message anew: a subject of one line, no line `---`, nothing like a diff or a mail header"
        try:
            again = build_tip(repository, base, files)
        except SeriesError as error:
            raise SeriesError(f"what was exported does not apply again: {error}\n{advice}") from error
        differences = stale(files, export_patches(repository, base, again))
    if differences:
        raise SeriesError(f"these commits do not survive as patches: {'; '.join(differences)}. {advice}")
    return again


def _where(old: bytes, new: bytes) -> str:
    pairs = zip_longest(old.split(b"\n"), new.split(b"\n"))
    number = next(number for number, (one, other) in enumerate(pairs, start=1) if one != other)
    return f"at line {number}"
