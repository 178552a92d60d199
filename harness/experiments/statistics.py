"""The arithmetic of a comparison: plain functions over arrays of log-ratios, one value a generation.

SciPy supplies the distributions and the exact permutation test; what stands here is the choice of the unit. Iterations and runs
inside one process share that process's offset, so a generation (fresh processes of both arms) counts once, by the median of
its pair log-ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

__all__ = [
    "Interval",
    "generation_value",
    "geometric_mean",
    "holm",
    "is_equivalent",
    "log_ratios",
    "median_interval",
    "minimum_detectable_effect",
    "needed_generations",
    "root_mean_square",
    "sign_flip_p",
    "smallest_p",
    "t_interval",
    "two_groups",
]

Floats = npt.NDArray[np.float64]
# Up to here (2^16 arrangements, a quarter of a second) the sign-flip test enumerates all; beyond, it draws this many.
EXACT_LIMIT = 16
DRAWS = 99_999
MOST_GENERATIONS = 100_000


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float


def log_ratios(base: Sequence[float], patched: Sequence[float]) -> Floats:
    """ln(patched / base) of each pair, in the metric's unit. Raises ValueError unless all are positive and finite."""
    old, new = np.asarray(base, dtype=float), np.asarray(patched, dtype=float)
    if old.shape != new.shape or old.size == 0:
        raise ValueError(f"pairs need as many base as patched values, at least one: {old.size} and {new.size}")
    both = np.concatenate([old, new])
    if not (np.isfinite(both).all() and (both > 0).all()):
        raise ValueError("a log-ratio needs positive, finite values")
    ratios: Floats = np.log(new / old)
    return ratios


def generation_value(ratios: Floats) -> float:
    """The median of a generation's pair log-ratios: one disturbed pair does not move it far."""
    return float(np.median(ratios))


def sign_flip_p(values: Floats) -> float:
    """Two-sided p of the sign-flip (one-sample permutation) test on the mean of the generation values.

    Without a change each value is as likely positive as negative, so all 2^n sign patterns are equally likely (Fisher 1935,
    section 21). Exact by enumeration up to n = 16; beyond that 99,999 seeded random patterns, p = (k + 1) / (draws + 1).
    Through scipy.stats.permutation_test.
    """
    count = len(values)
    result = stats.permutation_test(
        (values,),
        lambda sample, axis: np.mean(sample, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=2**count if count <= EXACT_LIMIT else DRAWS,
        batch=4096,
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)


def smallest_p(count: int) -> float:
    """The smallest two-sided p that `count` generations can give: 2^(1 - n). Five can never reach 0.05."""
    return float(2.0 ** (1 - count))


def t_interval(values: Floats, confidence: float) -> Interval:
    """Student's interval of the mean: mean +- t_(1+c)/2,n-1 * s / sqrt(n). In log units, as the values are. Needs n >= 2."""
    count = len(values)
    if count < 2:
        raise ValueError("an interval needs two values or more")
    mean = float(np.mean(values))
    half = float(stats.t.ppf((1 + confidence) / 2, count - 1)) * float(np.std(values, ddof=1)) / count**0.5
    return Interval(mean - half, mean + half)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down adjustment (1979): the i-th smallest of m, times m - i + 1, made monotone, at most 1."""
    count = len(p_values)
    adjusted = [0.0] * count
    reached = 0.0
    for rank, index in enumerate(np.argsort(np.asarray(p_values), kind="stable")):
        reached = max(reached, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = reached
    return tuple(adjusted)


def minimum_detectable_effect(spread: float, count: int, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """(t_(1-alpha/2),n-1 + t_power,n-1) * s / sqrt(n): the log-ratio that n generations find in 80 % of cases.

    `spread` is the standard deviation of the generation values, in log units, and so is the answer.
    """
    freedom = count - 1
    return float((stats.t.ppf(1 - alpha / 2, freedom) + stats.t.ppf(power, freedom)) * spread / count**0.5)


def needed_generations(spread: float, effect: float, *, alpha: float = 0.05, power: float = 0.8) -> int:
    """The fewest generations whose minimum detectable effect is at most `effect` (log units, > 0).

    Never fewer than the sign-flip test needs to reach alpha at all; at most 100,000, which stands for "not in practice".
    """
    low = next(n for n in range(2, 64) if smallest_p(n) <= alpha)
    high = low
    while minimum_detectable_effect(spread, high, alpha=alpha, power=power) > effect:
        low, high = high, high * 2
        if high >= MOST_GENERATIONS:
            return MOST_GENERATIONS
    while low < high:
        middle = (low + high) // 2
        if minimum_detectable_effect(spread, middle, alpha=alpha, power=power) > effect:
            low = middle + 1
        else:
            high = middle
    return high


def is_equivalent(interval: Interval, margin: float) -> bool:
    """Whether the interval (log units) lies within 1 +- margin as a ratio. With a 95 % interval stricter than TOST at 5 %."""
    return float(np.log1p(-margin)) <= interval.low and interval.high <= float(np.log1p(margin))


def geometric_mean(ratios: Sequence[float]) -> float:
    """The exponential of the mean logarithm: the only mean for which patched/base and base/patched agree."""
    return float(stats.gmean(np.asarray(ratios, dtype=float)))


def root_mean_square(values: Sequence[float]) -> float:
    """The spread of A/A log-ratios around the 0 that they should be (not around their own mean)."""
    return float(np.sqrt(np.mean(np.square(np.asarray(values, dtype=float)))))


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, Interval | None]:
    """Median and its order-statistic interval, as benchstat gives for one arm; None where n is too small (95 %: n >= 6)."""
    sample = np.asarray(values, dtype=float)
    median = float(np.median(sample))
    if sample.size < 2:
        return median, None
    found: Any = stats.quantile_test(sample, q=0, p=0.5).confidence_interval(confidence)
    low, high = float(found.low), float(found.high)
    return median, Interval(low, high) if np.isfinite(low) and np.isfinite(high) else None


def two_groups(values: Sequence[float]) -> bool:
    """Whether the values fall into two groups: one gap wider than half their range, with a quarter of them on each side.

    A plain sign of two states of the machine (clock, memory placement); it makes a note, never removes a value. From 8 on.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    count, reach = ordered.size, float(np.ptp(ordered)) if ordered.size else 0.0
    if count < 8 or reach == 0:
        return False
    gaps = np.diff(ordered)
    widest = int(np.argmax(gaps))
    return bool(gaps[widest] > reach / 2 and min(widest + 1, count - widest - 1) >= count / 4)
