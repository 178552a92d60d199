"""What a reader should know beside the verdict. Notes never change it, and never remove a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.experiments import statistics
from harness.experiments.plan import Plan
from harness.experiments.samples import Attempt, AttemptState, Sample, is_usable
from harness.experiments.wording import count, percent
from harness.vocabulary import Guard, GuardState, Slot

__all__ = ["arm_values", "notes_of"]

# PyTorch's benchmark utilities warn at the same spread of an arm's runs: interquartile range over median.
LARGE_SPREAD = 0.10


def arm_values(attempts: Sequence[Attempt], slot: Slot, metric: str) -> tuple[tuple[float, ...], ...]:
    """An arm's usable values of a metric, a tuple for each complete generation."""
    return tuple(
        tuple(
            value
            for one in attempt.samples
            if one.counted and one.slot is slot and is_usable(value := one.metrics.get(metric, float("nan")))
        )
        for attempt in attempts
        if attempt.state is AttemptState.COMPLETE
    )


def notes_of(plan: Plan, attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """Large spread, two groups, extreme values (all kept), equal outputs, and guards that this machine cannot read."""
    notes: list[str] = []
    for slot in plan.arms:
        values = [value for generation in arm_values(attempts, slot, plan.primary.key) for value in generation]
        if len(values) < 4:
            continue
        low, median, high = np.percentile(values, [25, 50, 75])
        spread = (high - low) / median
        if spread > LARGE_SPREAD:
            notes.append(
                f"{slot}: the middle half of {len(values)} runs spreads over {percent(spread, 0)} of the median "
                f"of {plan.primary.key}; the machine may be disturbed"
            )
        if statistics.two_groups(values):
            notes.append(f"{slot}: the {len(values)} values of {plan.primary.key} fall into two groups; no value is removed")
        extreme = sum(not low - 3 * (high - low) <= value <= high + 3 * (high - low) for value in values)
        if extreme:
            notes.append(
                f"{slot}: {extreme} of {len(values)} values lie more than 3 interquartile ranges outside; they are kept"
            )
    notes += _outputs(plan, attempts)
    absent = {
        (reading.guard, reading.detail)
        for attempt in attempts
        for one in attempt.samples
        if one.counted
        for reading in one.guards
        if reading.state is GuardState.ABSENT and reading.guard is not Guard.OUTPUTS
    }
    notes += [f"guard {guard} cannot be read here: {detail}" for guard, detail in sorted(absent)]
    return tuple(notes)


@dataclass(frozen=True, slots=True)
class _Pair:
    """What two runs with the same prompts generated: "" where the script did not tell, None where it was not asked."""

    where: str
    base: str | None
    other: str | None

    @property
    def told(self) -> bool:
        return bool(self.base and self.other)

    @property
    def same(self) -> bool:
        return self.told and self.base == self.other


def _outputs(plan: Plan, attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """In how many pairs both runs generated the same text; nothing for samples from before that was recorded.

    Every pair of a complete generation counts. What base and control do tells whether a difference is the engine's own.
    """
    pairs = _pairs(plan, attempts, Slot.PATCHED)
    told = [one for one in pairs if one.told]
    different = [one for one in told if not one.same]
    notes = []
    if told:
        note = f"outputs: the same in {len(told) - len(different)} of {count(len(told), 'pair')}"
        if different:
            note += f"; base and patched DIFFER in what they generate from the same prompts, first in {different[0].where}"
            control = [one for one in _pairs(plan, attempts, Slot.CONTROL) if one.told]
            if control:
                same = sum(one.same for one in control)
                note += f"; base and control, which are one arm: the same in {same} of {count(len(control), 'pair')}"
        notes.append(note)
    asked = any(one.base is not None or one.other is not None for one in pairs)
    if asked and len(told) < len(pairs):
        notes.append(f"outputs: not compared in {len(pairs) - len(told)} of {count(len(pairs), 'pair')}: no text was kept")
    return tuple(notes)


def _pairs(plan: Plan, attempts: Sequence[Attempt], partner: Slot) -> tuple[_Pair, ...]:
    """Base with `partner`, in every complete generation."""
    made = []
    for attempt in attempts:
        if attempt.state is not AttemptState.COMPLETE:
            continue
        found = {one.position: _output(one) for one in attempt.samples if one.counted}
        turns = plan.generation(attempt.generation).turns
        for one, two in zip(turns[::2], turns[1::2], strict=True):
            if partner in {one.slot, two.slot}:
                base, other = (one, two) if one.slot is Slot.BASE else (two, one)
                where = f"generation {attempt.generation}, runs {one.position} and {two.position}"
                made.append(_Pair(where, found[base.position], found[other.position]))
    return tuple(made)


def _output(sample: Sample) -> str | None:
    reading = next((one for one in sample.guards if one.guard is Guard.OUTPUTS), None)
    if reading is None:
        return None
    return reading.detail if reading.state is GuardState.PASSED else ""
