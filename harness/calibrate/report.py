"""A calibration in words and tables, in Markdown."""

from __future__ import annotations

import math
import statistics

from harness.calibrate.model import Calibration
from harness.calibrate.noise import DETECTABLE_AT, Alarms, Noise, alarms_of, interval_of, noise_of
from harness.experiments.statistics import Interval
from harness.experiments.wording import count

__all__ = ["render", "told"]

HEADER = ("metric", "median", "spread", "offset of a process", "pair in a process", *(f"MDE n={n}" for n in DETECTABLE_AT),
          "A/A mean [95 %]", "widest interval", "false alarms")  # fmt: skip


FOOTNOTE = (
    "Spread: root mean square of the generations' log-ratios. Offset: standard deviation of what a process keeps for life; "
    "pair: of one pair of runs inside it. MDE: smallest effect that n generations find in 80 % of cases. Widest interval: from "
    "the lowest to the highest end of the experiments' 95 % intervals."
)


def _percent(log: float) -> str:
    """A log-ratio (not below 0) as a change in per cent."""
    return f"{math.expm1(log) * 100:.2f} %"


def _signed(log: float) -> str:
    return f"{math.expm1(log) * 100:+.2f} %"


def _rate(alarms: Alarms) -> str:
    low, high = alarms.interval.low * 100, alarms.interval.high * 100
    return f"{alarms.count} of {alarms.experiments} ({alarms.rate * 100:.1f} %, 95 % interval {low:.1f} to {high:.1f} %)"


def told(calibration: Calibration, metric: str) -> str:
    """One line for another report: what this device does to this kind of metric when nothing changed."""
    pairs = calibration.pairs(metric)
    noise = noise_of(pairs, alpha=calibration.alpha)
    least = ", ".join(f"{_percent(noise.detectable[n])} with {n}" for n in DETECTABLE_AT)
    return (
        f"this device, calibrated {calibration.trials[-1].date[:10]} with {calibration.workload}: {metric} false alarms "
        f"{_rate(alarms_of(pairs, alpha=calibration.alpha))}, spread of one generation {_percent(noise.spread)}; generations "
        f"find at 80 % power {least}"
    )


def render(calibration: Calibration) -> str:
    """The whole report. Ends with a newline."""
    trials = len(calibration.trials)
    # The sign-flip test has 2^(n-1) different outcomes, so its level is a multiple of 1 in that many.
    outcomes = 2 ** (calibration.generations - 1)
    level = math.floor(calibration.alpha * outcomes) / outcomes
    if not trials:
        return f"No A/A experiment of {calibration.workload} is stored for this device and arm.\n"
    primary = calibration.pairs(calibration.primary)
    alarms = alarms_of(primary, alpha=calibration.alpha)
    software = ", ".join(f"{name} {version}" for name, version in calibration.software.items())
    lines = [
        (
            f"**{calibration.primary}: {_rate(alarms)} false alarms** in {count(trials, 'A/A experiment')} of "
            f"{calibration.generations} generations, {calibration.mode} mode; the sign-flip test allows "
            f"{level * 100:.1f} %."
        ),
        "",
        (
            f"- workload {calibration.workload} ({calibration.workload_digest[:12]}), base against base, fresh processes "
            "in each generation"
        ),
        f"- device: {calibration.device}",
        f"- {software or 'software unknown'}; arm {calibration.arm_digest[:12]}",
        f"- made {calibration.trials[0].date[:16]} to {calibration.trials[-1].date[:16]} UTC",
        "",
        "| " + " | ".join(HEADER) + " |",
        "|" + " --- |" * len(HEADER),
    ]
    lines += ["| " + " | ".join(_row(calibration, key, unit)) + " |" for key, unit in calibration.metrics.items()
              if calibration.pairs(key)]  # fmt: skip
    lines += [
        "",
        FOOTNOTE,
    ]
    return "\n".join(lines) + "\n"


def _row(calibration: Calibration, key: str, unit: str) -> tuple[str, ...]:
    pairs = calibration.pairs(key)
    noise: Noise = noise_of(pairs, alpha=calibration.alpha)
    middle = statistics.median(value for one in pairs for generation in one for pair in generation for value in pair)
    intervals = [interval_of(one, alpha=calibration.alpha) for one in pairs]
    reach = Interval(min(one.low for one in intervals), max(one.high for one in intervals))
    alarms = alarms_of(pairs, alpha=calibration.alpha)
    return (
        key,
        f"{middle:.4g} {unit.partition(',')[0]}",
        _percent(noise.spread),
        _percent(noise.offset),
        _percent(noise.within),
        *(_percent(noise.detectable[n]) for n in DETECTABLE_AT),
        f"{_signed(noise.mean)} [{_signed(noise.interval.low)}, {_signed(noise.interval.high)}]",
        f"{_signed(reach.low)} to {_signed(reach.high)}",
        f"{alarms.count} of {alarms.experiments}",
    )
