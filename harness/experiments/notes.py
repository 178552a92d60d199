"""What a reader should know beside the verdict. Notes never change it, and never remove a value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.experiments import statistics
from harness.experiments.plan import Plan
from harness.experiments.samples import Attempt, AttemptState, is_usable
from harness.experiments.wording import percent
from harness.vocabulary import GuardState, Slot

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
    """Large spread, two groups, extreme values (all kept), and guards that this machine cannot read."""
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
    absent = {
        (reading.guard, reading.detail)
        for attempt in attempts
        for one in attempt.samples
        if one.counted
        for reading in one.guards
        if reading.state is GuardState.ABSENT
    }
    notes += [f"guard {guard} cannot be read here: {detail}" for guard, detail in sorted(absent)]
    return tuple(notes)
