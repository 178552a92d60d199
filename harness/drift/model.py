"""What became of a series on one revision, patch by patch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.vocabulary import DriftState, Engine, SeriesStatus, Source

__all__ = ["Conflict", "Hunk", "LastGood", "Move", "PatchDrift", "SeriesDrift", "TargetKind", "worst"]


class TargetKind(StrEnum):
    """pin: a release in upstream/pins.toml. ref: a branch, tag or commit of a git repository of the engine."""

    PIN = "pin"
    REF = "ref"


@dataclass(frozen=True, slots=True)
class Hunk:
    """A hunk that does not apply: its number among `of` hunks of the file (from 1), and its line in the old file."""

    number: int
    of: int
    line: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """A file that a patch cannot change as it stands. `reason` is there where it is not a matter of hunks, else empty."""

    path: str
    hunks: tuple[Hunk, ...]
    reason: str = ""

    def __str__(self) -> str:
        places = ", ".join(f"{one.number} of {one.of} (line {one.line})" for one in self.hunks)
        said = [*(["hunks " * (len(self.hunks) > 1) or "hunk "] if places else []), places]
        return f"{self.path}: " + "; ".join(part for part in ("".join(said), self.reason) if part)


@dataclass(frozen=True, slots=True)
class Move:
    """A file that a patch changes and that is not there any more. `new` is None where no file looks like it.

    `similarity` in percent is git's; for a file that has grown so much that git does not see it, the lines of the old one that
    the new one has.
    """

    old: str
    new: str | None
    similarity: int = 0

    def __str__(self) -> str:
        return f"{self.old} is gone" if self.new is None else f"{self.old} is now {self.new} ({self.similarity} % the same)"


@dataclass(frozen=True, slots=True)
class PatchDrift:
    """`followed` is what a patch with moved files does once it is carried to the new names, None where nothing moved."""

    series: str
    name: str
    subject: str
    state: DriftState
    conflicts: tuple[Conflict, ...] = ()
    moves: tuple[Move, ...] = ()
    followed: DriftState | None = None


@dataclass(frozen=True, slots=True)
class LastGood:
    """The newest commit of the first-parent line at which the series applied, and the one that ended it.

    `commit` is None where it applied at none of the `looked` commits since the series' own base.
    """

    commit: str | None
    ended_by: str
    subject: str
    looked: int


@dataclass(frozen=True, slots=True)
class SeriesDrift:
    """One row of the table. `problem` says why there is no state; `patches_for` is the pin whose patches were tried."""

    series: str
    engine: Engine
    status: SeriesStatus | None
    target: str
    kind: TargetKind
    source: Source | None
    commit: str | None
    patches_for: str
    state: DriftState | None
    patches: tuple[PatchDrift, ...] = ()
    last_good: LastGood | None = None
    problem: str = ""
    # Why there is no last good commit, where one was looked for.
    no_history: str = ""


# From harmless to what needs a person most. A patch that has landed is no work, whatever the others are.
_ORDER = (DriftState.CLEAN, DriftState.CLEAN_3WAY, DriftState.TARGET_GONE, DriftState.CONFLICT)


def worst(states: tuple[DriftState, ...]) -> DriftState:
    """The state of a series from those of its patches: landed when all have, else the worst of the others."""
    left = [state for state in states if state is not DriftState.LANDED]
    return max(left, key=_ORDER.index) if left else DriftState.LANDED
