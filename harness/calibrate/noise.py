"""The components of A/A noise, and how often the method calls it a change: plain functions over pairs of base values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from harness.experiments import statistics
from harness.experiments.statistics import Interval

__all__ = ["DETECTABLE_AT", "Alarms", "Noise", "Pairs", "alarms_of", "clopper_pearson", "interval_of", "noise_of"]

# Numbers of generations for which the minimum detectable effect is told.
DETECTABLE_AT = (6, 10, 20)

# One A/A experiment: per generation, the (base, second base) values of its pairs, in the metric's unit.
Pairs = tuple[tuple[tuple[float, float], ...], ...]


@dataclass(frozen=True, slots=True)
class Noise:
    """All but the counts in log units: 0.01 is 1 %.

    The model is a one-way random-effects analysis of variance (Searle, Casella, McCulloch, Variance Components, 1992,
    chapter 3) of the pairs' log-ratios by generation: Var(pair) = 2 offset^2 + within^2, where `offset` is the standard
    deviation of what one process keeps for life (memory placement, a compiled kernel's address) and `within` is that of one
    pair inside a generation. More runs in a process lower `within`, only more processes average `offset`.
    """

    generations: int
    # Root mean square of the generations' log-ratios around the 0 that they should be.
    spread: float
    # Standard deviation of the generations' log-ratios around their mean.
    deviation: float
    offset: float
    within: float
    # Mean of all generations with its 95 % interval; it must hold 0, else one slot is favoured.
    mean: float
    interval: Interval
    # Minimum detectable effect at 80 % power by number of generations.
    detectable: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Alarms:
    """How often A/A experiments gave "faster" or "slower", with Clopper and Pearson's 95 % interval of the rate."""

    count: int
    experiments: int
    interval: Interval

    @property
    def rate(self) -> float:
        return self.count / self.experiments


def _log_pairs(experiments: Sequence[Pairs]) -> list[np.ndarray]:
    """The log-ratios of each generation of all experiments."""
    return [statistics.log_ratios([old for old, _ in pairs], [new for _, new in pairs]) for one in experiments for pairs in one]


def noise_of(experiments: Sequence[Pairs], *, alpha: float = 0.05) -> Noise:
    """Noise from all generations of all experiments. Raises ValueError for fewer than two generations or a bad value."""
    generations = _log_pairs(experiments)
    if len(generations) < 2:
        raise ValueError("noise needs two generations or more")
    values = np.asarray([statistics.generation_value(one) for one in generations])
    deviation = float(np.std(values, ddof=1))
    within = _within(generations)
    # Var(generation mean) = 2 offset^2 + within^2 / pairs; an estimate below 0 means that no offset can be seen.
    pairs = float(stats.hmean([len(one) for one in generations]))
    means = np.asarray([float(np.mean(one)) for one in generations])
    excess = float(np.var(means, ddof=1)) - within**2 / pairs
    return Noise(
        generations=len(generations),
        spread=statistics.root_mean_square(list(values)),
        deviation=deviation,
        offset=math.sqrt(max(0.0, excess) / 2),
        within=within,
        mean=float(np.mean(values)),
        interval=statistics.t_interval(values, 1 - alpha),
        detectable={count: statistics.minimum_detectable_effect(deviation, count, alpha=alpha) for count in DETECTABLE_AT},
    )


def _within(generations: Sequence[np.ndarray]) -> float:
    """Pooled standard deviation inside a generation; 0 where each has one pair only and nothing can be said."""
    freedom = sum(len(one) - 1 for one in generations)
    if freedom == 0:
        return 0.0
    return math.sqrt(sum(float(np.sum(np.square(one - np.mean(one)))) for one in generations) / freedom)


def is_alarm(pairs: Pairs, alpha: float = 0.05) -> bool:
    """Whether the test of a confirm experiment finds a change here: p <= alpha, and the t interval leaves out no change.

    The rule as in harness.experiments.verdict, without its last guard (an effect must exceed the largest A/A ratio seen), so
    that what is counted is the test itself.
    """
    values = np.asarray([statistics.generation_value(one) for one in _log_pairs([pairs])])
    interval = statistics.t_interval(values, 1 - alpha)
    return statistics.sign_flip_p(values) <= alpha and not interval.low <= 0 <= interval.high


def alarms_of(experiments: Sequence[Pairs], *, alpha: float = 0.05) -> Alarms:
    """False alarms among A/A experiments. Raises ValueError without one."""
    count = sum(is_alarm(one, alpha) for one in experiments)
    return Alarms(count, len(experiments), clopper_pearson(count, len(experiments)))


def clopper_pearson(count: int, total: int, confidence: float = 0.95) -> Interval:
    """Exact interval of a proportion (Clopper and Pearson 1934). Raises ValueError unless 0 <= count <= total, total > 0."""
    if not 0 <= count <= total or total == 0:
        raise ValueError(f"{count} of {total} is no proportion")
    found = stats.binomtest(count, total).proportion_ci(confidence, method="exact")
    return Interval(float(found.low), float(found.high))


def interval_of(pairs: Pairs, *, alpha: float = 0.05) -> Interval:
    """One experiment's interval of the A/A log-ratio, as a report shows it."""
    return statistics.t_interval(np.asarray([statistics.generation_value(one) for one in _log_pairs([pairs])]), 1 - alpha)
