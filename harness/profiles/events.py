"""The intervals of one recording as arrays, and the table they add up to. Every reader fills this, one table comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.errors import ProfileError
from harness.profiles.categories import categorise
from harness.profiles.intervals import union_length
from harness.profiles.model import DeviceTotals, HotRow, Profile, Recorder
from harness.profiles.names import normalise
from harness.profiles.phases import PHASES, UNATTRIBUTED
from harness.vocabulary import Phase

__all__ = ["Events", "Name", "Names", "profile_from", "unattributed_phases"]


@dataclass(frozen=True, slots=True)
class Name:
    """`shown` groups rows; `full` is what the category is read from."""

    shown: str
    full: str


class Names:
    """Gives each normalised name a small integer. The only part of a reader that grows while it reads."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self.names: list[Name] = []

    def of(self, full: str) -> int:
        return self.exactly(normalise(full), full)

    def exactly(self, shown: str, full: str) -> int:
        index = self._index.get(shown)
        if index is None:
            index = self._index[shown] = len(self.names)
            self.names.append(Name(shown, full))
        return index


@dataclass(frozen=True, slots=True)
class Events:
    """n intervals on devices: kernels, copies and sets, those replayed from CUDA graphs included. Times in ns.

    `phase` holds indices of PHASES; `between` marks launches between two steps (see phases.Timeline).
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    device: NDArray[np.int32]
    name: NDArray[np.int32]
    is_copy: NDArray[np.bool_]
    phase: NDArray[np.int8]
    between: NDArray[np.bool_]

    def __len__(self) -> int:
        return int(self.start.size)


def unattributed_phases(count: int) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Phase and between of `count` events of which nothing is known."""
    return np.full(count, UNATTRIBUTED, dtype=np.int8), np.zeros(count, dtype=np.bool_)


def profile_from(
    events: Events,
    names: Sequence[Name],
    *,
    label: str,
    recorder: Recorder,
    tool: str,
    steps: Mapping[Phase, int],
    notes: Sequence[str],
) -> Profile:
    """The table. Raises ProfileError when rows and totals do not agree to the nanosecond, or a time runs backwards."""
    duration = events.end - events.start
    backwards = int((duration < 0).sum())
    if backwards:
        raise ProfileError(f"{label}: {backwards} of {len(events)} intervals end before they start, so the file is damaged")
    rows = _rows(events, duration, names)
    devices = tuple(_totals(events, duration, device) for device in sorted(int(one) for one in np.unique(events.device)))
    for totals in devices:
        summed = sum(row.total_ns for row in rows if row.device == totals.device)
        if summed + totals.overlap_ns != totals.busy_ns:
            raise ProfileError(
                f"{label}: the rows of device {totals.device} add up to {summed} ns, overlap {totals.overlap_ns} ns, but it "
                f"was busy for {totals.busy_ns} ns; this is a fault of the reader, please report it with the file"
            )
    return Profile(
        label=label,
        recorder=recorder,
        tool=tool,
        devices=devices,
        rows=rows,
        steps=dict(steps),
        between_steps_ns=int(duration[events.between].sum()),
        notes=tuple(notes),
    )


def _rows(events: Events, duration: NDArray[np.int64], names: Sequence[Name]) -> tuple[HotRow, ...]:
    if not len(events):
        return ()
    # One small integer a group: (device, name, phase).
    key = (events.device.astype(np.int64) * len(names) + events.name) * len(PHASES) + events.phase
    # bincount adds in double precision, which is exact for whole numbers up to 2**53 ns: 104 days of GPU time.
    total = np.bincount(key, weights=duration)
    calls = np.bincount(key)
    least = np.full(total.size, np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(least, key, duration)
    most = np.zeros(total.size, dtype=np.int64)
    np.maximum.at(most, key, duration)
    rows = []
    for index in map(int, np.flatnonzero(calls)):
        rest, phase = divmod(index, len(PHASES))
        device, name = divmod(rest, len(names))
        rows.append(
            HotRow(
                device=device,
                name=names[name].shown,
                category=categorise(names[name].full),
                phase=PHASES[phase],
                calls=int(calls[index]),
                total_ns=int(total[index]),
                least_ns=int(least[index]),
                most_ns=int(most[index]),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.device, row.name, row.phase)))


def _totals(events: Events, duration: NDArray[np.int64], device: int) -> DeviceTotals:
    own = events.device == device
    copies = int((own & events.is_copy).sum())
    start, end = events.start[own], events.end[own]
    return DeviceTotals(
        device=device,
        kernels=int(own.sum()) - copies,
        copies=copies,
        span_ns=int(end.max() - start.min()),
        busy_ns=union_length(start, end),
        summed_ns=int(duration[own].sum()),
    )
