"""Two arms kernel by kernel: matched by normalised name, phase and device; what is new and what vanished are rows too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.errors import ProfileError
from harness.profiles.model import Category, HotRow, Profile
from harness.vocabulary import Phase

__all__ = ["Difference", "Match", "Pair", "compare"]

# Below this share of common time the two are no arms of one workload.
_COMMON = 0.5


class Match(StrEnum):
    """Whether a kernel ran in both arms, in the second alone (new), or in the first alone (vanished)."""

    BOTH = "both"
    NEW = "new"
    VANISHED = "vanished"


@dataclass(frozen=True, slots=True)
class Pair:
    """One kernel in one phase on the n-th device of both arms. Times in ns, 0 with 0 calls where it did not run."""

    device: int
    name: str
    category: Category
    phase: Phase
    match: Match
    calls: tuple[int, int]
    total_ns: tuple[int, int]

    @property
    def change_ns(self) -> int:
        return self.total_ns[1] - self.total_ns[0]

    @property
    def mean_change(self) -> float | None:
        """Relative change of the mean time of a call; None where one arm has none."""
        if 0 in self.calls or not self.total_ns[0]:
            return None
        return (self.total_ns[1] / self.calls[1]) / (self.total_ns[0] / self.calls[0]) - 1


@dataclass(frozen=True, slots=True)
class Difference:
    """Sum of the pairs' change_ns + overlap_change_ns == change of the busy time, to the nanosecond."""

    before: Profile
    after: Profile
    # Largest change first.
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]

    @property
    def busy_change_ns(self) -> int:
        return self.after.busy_ns - self.before.busy_ns

    @property
    def overlap_change_ns(self) -> int:
        return sum(one.overlap_ns for one in self.after.devices) - sum(one.overlap_ns for one in self.before.devices)


def compare(before: Profile, after: Profile) -> Difference:
    """Raises ProfileError when the two have different numbers of GPUs: sums over them would compare nothing."""
    if len(before.devices) != len(after.devices):
        raise ProfileError(
            f"{before.label} ran on {len(before.devices)} GPU(s), {after.label} on {len(after.devices)}: profile both arms "
            "with the same parallelism"
        )
    first, second = _keyed(before), _keyed(after)
    pairs = []
    for key in first.keys() | second.keys():
        device, name, phase = key
        a, b = first.get(key), second.get(key)
        known = a or b
        if known is None:
            raise AssertionError("a key comes from one of the two")
        pairs.append(
            Pair(
                device=device,
                name=name,
                category=known.category,
                phase=phase,
                match=Match.BOTH if a and b else Match.NEW if b else Match.VANISHED,
                calls=(a.calls if a else 0, b.calls if b else 0),
                total_ns=(a.total_ns if a else 0, b.total_ns if b else 0),
            )
        )
    ordered = tuple(sorted(pairs, key=lambda one: (-abs(one.change_ns), one.device, one.name, one.phase)))
    difference = Difference(before, after, ordered, tuple(_notes(before, after, ordered)))
    if sum(pair.change_ns for pair in ordered) + difference.overlap_change_ns != difference.busy_change_ns:
        raise ProfileError("the rows of the difference do not add up to the change of busy time; please report both files")
    return difference


def _keyed(profile: Profile) -> Mapping[tuple[int, str, Phase], HotRow]:
    """By the device's place in the list: the arms may have run on GPUs of different numbers."""
    place = {one.device: index for index, one in enumerate(profile.devices)}
    return {(place[row.device], row.name, row.phase): row for row in profile.rows}


def _notes(before: Profile, after: Profile, pairs: Sequence[Pair]) -> list[str]:
    notes = []
    total = before.busy_ns + after.busy_ns - sum(one.overlap_ns for one in (*before.devices, *after.devices))
    common = sum(sum(pair.total_ns) for pair in pairs if pair.match is Match.BOTH)
    if total and common / total < _COMMON:
        notes.append(
            f"only {common / total * 100:.0f} % of the time is in kernels that both ran: two workloads, or another backend, "
            "rather than two arms"
        )
    if dict(before.steps) != dict(after.steps):
        notes.append(
            f"the arms ran different steps ({_steps(before)} against {_steps(after)}): totals follow the steps, so look at the "
            "means of a call"
        )
    if before.recorder is not after.recorder:
        notes.append(f"recorded by different tools ({before.recorder} and {after.recorder}), which add different overhead")
    elif before.tool != after.tool:
        notes.append(f"recorded by different versions: {before.tool} and {after.tool}")
    return notes


def _steps(profile: Profile) -> str:
    return ", ".join(f"{count} {phase}" for phase, count in sorted(profile.steps.items())) or "none marked"
