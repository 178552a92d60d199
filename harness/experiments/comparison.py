"""One metric of one experiment, compared: the numbers that a verdict and a table row are made of."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.experiments import statistics
from harness.experiments.calibration import generation_ratio
from harness.experiments.plan import Plan
from harness.experiments.samples import Attempt, ratio_values
from harness.vocabulary import Direction, Slot, Tier
from harness.workloads.model import Metric

__all__ = ["Comparison", "compare", "control_ratio", "with_adjusted"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`ratio` is patched/base (new/old), whatever the metric's direction.

    confirm: n generations, the ratio is their geometric mean, [low, high] the t interval at 1 - alpha, p the sign-flip test.
    screen: n pairs of one generation, the ratio is their median, [low, high] their range; there is no p, because
    pairs that share processes share those processes' offset.
    """

    metric: Metric
    n: int
    # ln(patched/base) of each unit, in order.
    values: tuple[float, ...]
    ratio: float
    low: float
    high: float
    p: float | None
    # p after Holm's correction over the secondary metrics; None for the primary.
    adjusted_p: float | None
    # Minimum detectable effect at 80 % power as a fraction: 0.01 is 1 %.
    mde: float | None
    # Ratio of control/base in the same plan; None without a control.
    control: float | None

    @property
    def effect(self) -> float:
        """Ln of the ratio: below 0 when the patched value is lower."""
        return math.log(self.ratio)

    @property
    def better(self) -> bool:
        """Whether the ratio, taken at face value, is an improvement."""
        return (self.ratio < 1) == (self.metric.direction is Direction.LOWER)

    def is_significant(self, alpha: float) -> bool:
        """Whether p (or adjusted p) is at most alpha, the interval leaves out 1, and the effect is above the control's."""
        p = self.p if self.adjusted_p is None else self.adjusted_p
        beyond_control = self.control is None or abs(self.effect) > abs(math.log(self.control))
        return p is not None and p <= alpha and not self.low <= 1 <= self.high and beyond_control


def compare(plan: Plan, attempts: Sequence[Attempt], metric: Metric) -> Comparison | None:
    """Base against patched; None when a value of this metric is missing, NaN or not positive in any counted run."""
    units = ratio_values(plan, attempts, metric.key, Slot.PATCHED)
    if units is None:
        return None
    control = control_ratio(plan, attempts, metric)
    if plan.control and control is None:
        return None
    if plan.tier is Tier.SCREEN:
        (pairs,) = units
        values = statistics.log_ratios([old for old, _ in pairs], [new for _, new in pairs])
        ratio = math.exp(statistics.generation_value(values))
        low, high = math.exp(values.min()), math.exp(values.max())
        return Comparison(metric, len(values), tuple(values.tolist()), ratio, low, high, None, None, None, control)
    ratios = [generation_ratio(pairs) for pairs in units]
    values = np.asarray(ratios)
    interval = statistics.t_interval(values, 1 - plan.alpha)
    spread = float(np.std(values, ddof=1))
    return Comparison(
        metric=metric,
        n=len(ratios),
        values=tuple(ratios),
        ratio=math.exp(float(np.mean(values))),
        low=math.exp(interval.low),
        high=math.exp(interval.high),
        p=statistics.sign_flip_p(values),
        adjusted_p=None,
        mde=math.expm1(statistics.minimum_detectable_effect(spread, len(ratios), alpha=plan.alpha)),
        control=control,
    )


def control_ratio(plan: Plan, attempts: Sequence[Attempt], metric: Metric) -> float | None:
    """Control/base over the experiment: what the method makes of no change at all, here and now."""
    if not plan.control:
        return None
    units = ratio_values(plan, attempts, metric.key, Slot.CONTROL)
    return None if units is None else math.exp(float(np.mean([generation_ratio(pairs) for pairs in units])))


def with_adjusted(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """The secondary comparisons with Holm's correction over all of them."""
    given = [one.p for one in comparisons if one.p is not None]
    if len(given) != len(comparisons):
        return tuple(comparisons)
    return tuple(dataclasses.replace(one, adjusted_p=p) for one, p in zip(comparisons, statistics.holm(given), strict=True))
