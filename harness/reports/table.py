"""The rows of a report, in the manner of benchstat: each arm's median, the change with its interval, p and n."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.experiments.comparison import Comparison
from harness.experiments.notes import arm_values
from harness.experiments.plan import Plan
from harness.experiments.samples import Attempt, attempts_of
from harness.experiments.statistics import median_interval
from harness.experiments.wording import count, percent
from harness.reports.evidence import Evidence
from harness.vocabulary import Direction, Slot, Tier, Verdict

__all__ = ["HEADER", "change", "number", "rows", "signed"]

HEADER = ("metric", "base", "patched", "change (patched/base - 1)", "p", "n")


def number(value: float) -> str:
    """Four significant digits, never an exponent for the sizes that occur here."""
    return f"{value:.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def signed(ratio: float) -> str:
    """0.912 -> '-8.80 %'."""
    return f"{(ratio - 1) * 100:+.2f} %"


def change(comparison: Comparison) -> str:
    """The change with its interval (confirm) or the range of its pairs (screen)."""
    low, high = (comparison.low - 1) * 100, (comparison.high - 1) * 100
    return f"{signed(comparison.ratio)} [{low:+.2f}, {high:+.2f}]"


def rows(evidence: Evidence) -> tuple[tuple[str, ...], ...]:
    """One row a metric, the primary first; empty when the experiment is void, because there is then no number to quote.

    `~` before a change: not significant. For the primary metric that is the verdict's word; for the others p (Holm-corrected),
    the interval and the control decide; in a screen, which has no p, that all pairs agree in sign.
    """
    decision, plan = evidence.decision, evidence.plan
    if decision.primary is None:
        return ()
    attempts = attempts_of(plan, evidence.samples)
    return tuple(
        _row(evidence, attempts, one, primary=one is decision.primary) for one in (decision.primary, *decision.secondary)
    )


def _row(evidence: Evidence, attempts: Sequence[Attempt], one: Comparison, *, primary: bool) -> tuple[str, ...]:
    plan = evidence.plan
    verdict = evidence.decision.verdict
    significant = verdict in {Verdict.FASTER, Verdict.SLOWER} if primary else one.is_significant(plan.alpha)
    arrow = "lower" if one.metric.direction is Direction.LOWER else "higher"
    name = f"{one.metric.key} ({one.metric.unit}, {arrow} is better)" + (" *" if primary else "")
    text = change(one)
    if plan.tier is Tier.SCREEN:
        significant = one.low > 1 or one.high < 1
    if not significant:
        text = "~ " + text
    p = one.p if one.adjusted_p is None else one.adjusted_p
    return (
        name,
        _arm(plan, attempts, Slot.BASE, one.metric.key),
        _arm(plan, attempts, Slot.PATCHED, one.metric.key),
        text,
        "n/a" if p is None else f"{p:.3f}",
        count(one.n, "pair" if plan.tier is Tier.SCREEN else "generation"),
    )


def _arm(plan: Plan, attempts: Sequence[Attempt], slot: Slot, metric: str) -> str:
    """Median over generations (screen: over runs), +- the order-statistic interval; its range where n is too small for one."""
    generations = arm_values(attempts, slot, metric)
    if plan.tier is Tier.SCREEN:
        values = [value for generation in generations for value in generation]
    else:
        values = [float(np.median(generation)) for generation in generations]
    median, interval = median_interval(values)
    if interval is None:
        return f"{number(median)} ({number(min(values))} to {number(max(values))})"
    return f"{number(median)} ± {percent(max(interval.high / median - 1, 1 - interval.low / median))}"
