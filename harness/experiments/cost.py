"""What a plan will take, and the text of --dry-run."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experiments.plan import Plan
from harness.experiments.wording import percent
from harness.progress import duration
from harness.vocabulary import Direction, Mode, Slot, Tier

__all__ = ["counted_runs", "describe", "estimated_seconds", "warmup_count"]


def counted_runs(plan: Plan) -> int:
    return sum(len(generation.turns) for generation in plan.generations)


def warmup_count(plan: Plan) -> int:
    return sum(len(plan.warmups(one.number, first=one.number == 1)) * len(one.slots) for one in plan.generations)


def estimated_seconds(plan: Plan) -> float | None:
    """Starts plus runs, by the plan's own estimates; None without them. In process mode a run's time includes its start."""
    if plan.run_seconds is None or (plan.mode is Mode.LIVE and plan.start_seconds is None):
        return None
    starts = len(plan.generations) * (plan.start_seconds or 0.0) if plan.mode is Mode.LIVE else 0.0
    return starts + (counted_runs(plan) + warmup_count(plan)) * plan.run_seconds


def _letters(order: Sequence[Slot]) -> str:
    return " ".join(slot.value[0].upper() for slot in order)


def describe(plan: Plan) -> str:
    """What would be run, in which order, what it costs and how it would be judged."""
    seconds = estimated_seconds(plan)
    better = "lower is better" if plan.primary.direction is Direction.LOWER else "higher is better"
    generations = f"{len(plan.generations)} generation{'s' if len(plan.generations) > 1 else ''}"
    lines = [
        f"plan        {plan.id}  (sha256 {plan.digest[:12]})",
        f"tier        {plan.tier}, {plan.mode} mode{', A/A (base against itself)' if plan.aa else ''}",
        f"workload    {plan.workload}  ({plan.workload_digest[:12]})",
        f"device      {plan.device}",
        *(f"{slot.value:<11} {arm.what} at {arm.tip[:12]}  ({arm.digest[:12]})" for slot, arm in plan.arms.items()),
        f"primary     {plan.primary.key} ({plan.primary.unit}, {better})",
        f"secondary   {', '.join(metric.key for metric in plan.secondary) or 'none'}"
        + (" (Holm-corrected)" if len(plan.secondary) > 1 else ""),
        "order       B base, P patched" + (", C control (base again)" if plan.control else ""),
        *(f"  {one.number:>8}  {_letters(one.order)}" for one in plan.generations),
        f"runs        {counted_runs(plan)} counted and {warmup_count(plan)} warm-up in {generations}",
        f"replace     at most {plan.replacements} disturbed generations; a failed run makes the experiment void",
        f"time        {'about ' + duration(seconds) if seconds is not None else 'unknown until the first generation has run'}",
        f"judged by   {_rule(plan)}",
    ]
    return "\n".join(lines)


def _rule(plan: Plan) -> str:
    if plan.tier is Tier.SCREEN:
        return "worth confirming: all pairs agree, and the ratio is off 1 by more than 1.5 % and twice the stored A/A spread"
    return (
        f"faster or slower: sign-flip p <= {plan.alpha:g}, t interval without 1, effect above the largest A/A ratio; "
        f"equivalent: interval within 1 +- {percent(plan.margin, 1)}"
    )
