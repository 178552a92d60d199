"""The points of a kernel workload, one line each: both arms' times and the ratio with its interval."""

from __future__ import annotations

import numpy as np

from harness.experiments.notes import arm_values
from harness.experiments.samples import attempts_of, ratio_values
from harness.experiments.statistics import generation_value, log_ratios, t_interval
from harness.reports.evidence import Evidence
from harness.reports.table import number
from harness.runs.kernel_names import kernels_in
from harness.vocabulary import Slot, Tier
from harness.workloads.kernel_model import ERROR_KEY, KernelWorkload, point_key

__all__ = ["point_lines"]


def point_lines(evidence: Evidence) -> tuple[str, ...]:
    """Lines like `NAME: cold 43.1 -> 40.0 µs, -7.20 % [-7.60, -6.80]; warm ...`: medians over runs, and the ratio's interval.

    Confirm: geometric mean over generations with its t interval. Screen: median of the pairs with the lowest and highest. No
    line is a verdict: one in twenty intervals misses by chance. Empty for an engine workload.
    """
    workload = evidence.workload
    if not isinstance(workload, KernelWorkload):
        return ()
    found = []
    for point in workload.points:
        parts = [text for state in workload.states if (text := _state(evidence, state, point))]
        found.append(f"{point}: {'; '.join(parts)}{_errors(evidence, point)}" if parts else f"{point}: not measured")
    return (*found, *_kernels(evidence))


def _kernels(evidence: Evidence) -> tuple[str, ...]:
    """Which kernels ran, by the driver's names: what a change replaced, or that it did not reach the kernel at all."""
    ran = {
        slot: frozenset(name for one in evidence.samples if one.counted and one.slot is slot for name in kernels_in(one.detail))
        for slot in (Slot.BASE, Slot.PATCHED)
    }
    base, patched = ran[Slot.BASE], ran[Slot.PATCHED]
    if not base and not patched:
        return ()
    parts = [
        f"{what} {', '.join(sorted(names))}"
        for what, names in (("in both arms", base & patched), ("base only", base - patched), ("patched only", patched - base))
        if names
    ]
    return (f"kernels that ran: {'; '.join(parts)}",)


def _errors(evidence: Evidence, point: str) -> str:
    """The largest relative errors of both arms against the reference: a faster kernel may be a less exact one."""
    largest = {
        slot: max(
            (one.metrics[key] for one in evidence.samples if one.counted and one.slot is slot and key in one.metrics),
            default=None,
        )
        for slot in (Slot.BASE, Slot.PATCHED)
        for key in (point_key(ERROR_KEY, point),)
    }
    base, patched = largest[Slot.BASE], largest[Slot.PATCHED]
    return "" if base is None or patched is None else f"; error {base:.2g} -> {patched:.2g}"


def _state(evidence: Evidence, state: str, point: str) -> str:
    plan, key = evidence.plan, point_key(state, point)
    attempts = attempts_of(plan, evidence.samples)
    values = ratio_values(plan, attempts, key, Slot.PATCHED)
    if not values:
        return ""
    base, patched = (
        float(np.median([one for generation in arm_values(attempts, slot, key) for one in generation]))
        for slot in (Slot.BASE, Slot.PATCHED)
    )
    generations = [log_ratios([old for old, _ in pairs], [new for _, new in pairs]) for pairs in values]
    if plan.tier is Tier.SCREEN:
        pairs = np.concatenate(generations)
        middle, low, high = float(np.median(pairs)), float(pairs.min()), float(pairs.max())
    else:
        each = np.array([generation_value(one) for one in generations])
        interval = t_interval(each, 1 - plan.alpha)
        middle, low, high = float(each.mean()), interval.low, interval.high
    ratio, least, most = ((np.exp(one) - 1) * 100 for one in (middle, low, high))
    return f"{state} {number(base)} -> {number(patched)} µs, {ratio:+.2f} % [{least:+.2f}, {most:+.2f}]"
