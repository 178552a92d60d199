"""From samples to a verdict: the rules, in one place, applied to what was planned and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.experiments import statistics
from harness.experiments.calibration import History
from harness.experiments.comparison import Comparison, compare, with_adjusted
from harness.experiments.notes import notes_of
from harness.experiments.plan import Plan
from harness.experiments.samples import Attempt, AttemptState, Sample, attempts_of
from harness.experiments.wording import count, percent, size
from harness.vocabulary import ExitCode, ScreenSign, Tier, Verdict

__all__ = ["SCREEN_THRESHOLD", "Decision", "DeviceNoise", "decide"]

# Below this a screen of a few pairs cannot tell a change from the offset that a process keeps for life.
SCREEN_THRESHOLD = 0.015
# And never below this many times the spread of stored A/A generations.
SCREEN_SPREADS = 2.0


@dataclass(frozen=True, slots=True)
class Decision:
    """`verdict` for a confirm experiment, `sign` for a screen; the other is None.

    `largest_aa` is the largest |A/A ratio - 1| as a log-ratio: of this plan's control and of all stored confirm-tier A/A
    comparisons of the same metric, workload, device and mode (`aa_count` of them). `aa_spread` is the spread of stored single
    A/A generations, which a screen is held against. `needed` is the number of generations that would find an effect of
    `needed_for` (a log-ratio: the observed size, at least the margin) in 80 % of cases; only where the answer is inconclusive.
    """

    verdict: Verdict | None
    sign: ScreenSign | None
    primary: Comparison | None
    secondary: tuple[Comparison, ...]
    largest_aa: float | None
    aa_count: int
    aa_spread: float | None
    needed: int | None
    needed_for: float | None
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    # Generations that were made again, each with why; and the runs that failed or were void for good.
    replaced: tuple[str, ...]
    failures: tuple[str, ...]

    @property
    def outcome(self) -> Verdict | ScreenSign:
        found = self.verdict if self.verdict is not None else self.sign
        if found is None:
            raise ValueError("a decision has a verdict or a sign")
        return found

    @property
    def is_void(self) -> bool:
        return Verdict.VOID is self.verdict or ScreenSign.VOID is self.sign

    @property
    def exit_code(self) -> ExitCode:
        if self.is_void:
            return ExitCode.VOID
        codes = {Verdict.SLOWER: ExitCode.SLOWER, Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE}
        return codes.get(self.verdict, ExitCode.OK) if self.verdict is not None else ExitCode.OK


@dataclass(frozen=True, slots=True)
class DeviceNoise:
    """What a calibration says of a kind of metric on this device: the spread of one generation, and the same in words."""

    spread: float
    told: str


def decide(
    plan: Plan,
    samples: Sequence[Sample],
    history: Mapping[str, History] | None = None,
    device_noise: DeviceNoise | None = None,
) -> Decision:
    """Judge an experiment by its plan. `history`: stored A/A records by metric key (harness.experiments.calibration.load_all).

    `device_noise` stands in for the spread where the workload has no A/A of its own; no verdict depends on it.

    void: a run failed, or a guard fired and the generation was not made again within the plan's limit, or the experiment is
    not finished. faster/slower: sign-flip p <= alpha, the t interval leaves out 1, and the effect is larger than the largest
    A/A ratio. equivalent: the interval lies within the margin, and so does the largest A/A ratio. Else inconclusive.
    A screen says "worth confirming" when all pairs agree and the ratio is off 1 by more than 1.5 % and twice the A/A spread.
    Raises EvidenceError for samples that are not this plan's.
    """
    attempts = attempts_of(plan, samples)
    history = history or {}
    failures = _voids(plan, attempts)
    replaced = tuple(one.reason for one in attempts if one.state in {AttemptState.DISTURBED, AttemptState.INTERRUPTED})
    primary = None if failures else compare(plan, attempts, plan.primary)
    if failures or primary is None:
        verdict = Verdict.VOID if plan.tier is Tier.CONFIRM else None
        sign = ScreenSign.VOID if plan.tier is Tier.SCREEN else None
        notes = notes_of(plan, attempts)
        return Decision(verdict, sign, None, (), None, 0, None, None, None, failures, notes, replaced, failures)
    compared = [(metric, compare(plan, attempts, metric)) for metric in plan.secondary]
    secondary = with_adjusted([one for _, one in compared if one is not None])
    missing = tuple(
        f"{metric.key}: not compared, because a counted run gave no positive number for it"
        for metric, one in compared
        if one is None
    )
    notes = (*missing, *notes_of(plan, attempts), *(() if device_noise is None else (device_noise.told,)))
    stored = history.get(plan.primary.key, History()).without(plan.id)
    if plan.tier is Tier.SCREEN:
        sign, reasons = _screen(primary, stored, device_noise)
        return Decision(None, sign, primary, secondary, None, 0, stored.spread, None, None, reasons, notes, replaced, ())
    known = [] if primary.control is None else [abs(math.log(primary.control))]
    known += [] if stored.largest is None else [stored.largest]
    largest = max(known, default=None)
    known_count = stored.experiments + (primary.control is not None)
    verdict, needed, reasons = _confirm(plan, primary, largest, known_count)
    needed_for = None if needed is None else _target(plan, primary)
    notes = (*notes, *_reach(plan, len(secondary)))
    return Decision(
        verdict=verdict,
        sign=None,
        primary=primary,
        secondary=secondary,
        largest_aa=largest,
        aa_count=known_count,
        aa_spread=stored.spread,
        needed=needed,
        needed_for=needed_for,
        reasons=reasons,
        notes=notes,
        replaced=replaced,
        failures=(),
    )


def _voids(plan: Plan, attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """Why the experiment has no answer; empty when it has one."""
    failed = tuple(one.reason for one in attempts if one.state is AttemptState.FAILED)
    if failed:
        return failed
    disturbed = [one.reason for one in attempts if one.state is AttemptState.DISTURBED]
    if len(disturbed) > plan.replacements:
        return (
            *disturbed,
            f"{len(disturbed)} generations were disturbed; the plan allows {plan.replacements} to be made again",
        )
    complete = {one.generation for one in attempts if one.state is AttemptState.COMPLETE}
    open_ones = len(plan.generations) - len(complete)
    if open_ones:
        return (
            *disturbed,
            f"unfinished: {len(complete)} of {len(plan.generations)} generations are complete; resume the experiment",
        )
    return ()


def _screen(primary: Comparison, stored: History, device_noise: DeviceNoise | None) -> tuple[ScreenSign, tuple[str, ...]]:
    agree = all(value < 0 for value in primary.values) or all(value > 0 for value in primary.values)
    off = abs(primary.ratio - 1)
    reasons = [f"{primary.n} of {primary.n} pairs agree" if agree else f"the {primary.n} pairs do not agree in sign"]
    large = off > SCREEN_THRESHOLD
    reasons.append(
        f"the ratio is off 1 by {percent(off)}, {'more' if large else 'not more'} than {percent(SCREEN_THRESHOLD, 1)}"
    )
    clear = True
    spread, of = stored.spread, count(len(stored.records), "A/A experiment")
    if spread is None and device_noise is not None:
        spread, of = device_noise.spread, "this device's calibration"
    if spread is None:
        reasons.append(
            "no A/A is stored for this workload, metric and device, so only the fixed limit applies (make one with --aa)"
        )
    else:
        limit = SCREEN_SPREADS * spread
        clear = abs(primary.effect) > limit
        word = "more" if clear else "not more"
        reasons.append(f"{word} than twice the A/A spread ({size(limit, like=primary.effect)}, {of})")
    return (ScreenSign.WORTH_CONFIRMING if agree and large and clear else ScreenSign.NO_SIGN), tuple(reasons)


def _confirm(plan: Plan, primary: Comparison, largest: float | None, known: int) -> tuple[Verdict, int | None, tuple[str, ...]]:
    if primary.p is None or primary.mde is None:
        raise ValueError("a confirm experiment has p and MDE")
    effect = abs(primary.effect)
    excludes = not primary.low <= 1 <= primary.high
    beyond = largest is None or effect > largest
    floor = "no A/A ratio is known"
    if largest is not None:
        floor = (
            f"the effect ({size(effect, like=primary.effect)}) is {'larger' if beyond else 'not larger'} than the largest of "
            f"{count(known, 'A/A ratio')} ({size(largest, like=primary.effect)})"
        )
    reasons = [
        f"p = {primary.p:.3g} is {'at most' if primary.p <= plan.alpha else 'above'} {plan.alpha:g}",
        f"the {percent(1 - plan.alpha, 0)} interval {'leaves out' if excludes else 'includes'} 1",
        floor,
    ]
    if primary.p <= plan.alpha and excludes and beyond:
        return (Verdict.FASTER if primary.better else Verdict.SLOWER), None, tuple(reasons)
    within = statistics.is_equivalent(statistics.Interval(math.log(primary.low), math.log(primary.high)), plan.margin)
    if within and (largest is None or largest <= math.log1p(plan.margin)):
        return Verdict.EQUIVALENT, None, (*reasons, f"the interval lies within 1 +- {percent(plan.margin, 1)}")
    reasons.append(f"{primary.n} generations find an effect of {percent(primary.mde)} or more in 80 % of cases")
    target = _target(plan, primary)
    needed = statistics.needed_generations(_spread(primary), target, alpha=plan.alpha)
    reasons.append(f"an effect of {size(target, like=primary.effect)} needs about {needed} generations")
    if within:
        reasons.append("the interval lies within the margin, but the A/A ratios do not, so equivalence is not shown")
    return Verdict.INCONCLUSIVE, needed, tuple(reasons)


def _target(plan: Plan, primary: Comparison) -> float:
    """The effect to plan for, a log-ratio: the observed one, but never less than what counts as a change at all."""
    return max(abs(primary.effect), math.log1p(plan.margin))


def _reach(plan: Plan, secondary: int) -> tuple[str, ...]:
    """A note where Holm's first step is out of reach: n generations cannot give a p below 2^(1-n)."""
    generations = len(plan.generations)
    if statistics.smallest_p(generations) * secondary <= plan.alpha:
        return ()
    enough = next(n for n in range(generations, 64) if statistics.smallest_p(n) * secondary <= plan.alpha)
    least = f"smallest p after Holm's correction {statistics.smallest_p(generations) * secondary:.3g}"
    return (f"{generations} generations cannot make one of {secondary} secondary metrics significant ({least}); {enough} can",)


def _spread(comparison: Comparison) -> float:
    mean = sum(comparison.values) / comparison.n
    return math.sqrt(sum((value - mean) ** 2 for value in comparison.values) / (comparison.n - 1))
