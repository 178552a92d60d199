"""The sentences of a report; the terminal and Markdown differ only in how they set them."""

from __future__ import annotations

from collections import Counter

from harness.experiments.comparison import Comparison
from harness.experiments.cost import counted_runs
from harness.experiments.samples import AttemptState, attempts_of
from harness.experiments.wording import count, percent, size
from harness.reports.evidence import Evidence
from harness.reports.points import point_lines
from harness.reports.table import signed
from harness.vocabulary import GuardState, Mode, ScreenSign, Slot, Tier, Verdict
from harness.workloads.kernel_model import KernelWorkload

__all__ = ["FOOTNOTE", "headline", "sections", "verdict_word"]

FOOTNOTE = {
    Tier.CONFIRM: (
        "* primary metric, named before the first run. Arms: median of the generations' medians ± its 95 % order-statistic "
        "interval. Change: geometric mean over generations with its t interval; ~ not significant. p: sign-flip test, "
        "Holm-corrected for the other metrics."
    ),
    Tier.SCREEN: (
        "* primary metric, named before the first run. Arms: median of the runs (and their range). Change: median over pairs "
        "[lowest, highest pair]; ~ pairs that do not agree. A screen has no p: its pairs share processes. It never says faster."
    ),
}


def verdict_word(evidence: Evidence) -> str:
    return str(evidence.decision.outcome)


def _size(one: Comparison) -> str:
    return f"{percent(abs(one.ratio - 1))} {'lower' if one.ratio < 1 else 'higher'}"


def _face_value(one: Comparison) -> str:
    return "better" if one.better else "worse"


def headline(evidence: Evidence) -> str:
    """The verdict with its number, in one line; a ratio is always new/old, with what it means."""
    alarm = evidence.decision.outcome in {Verdict.FASTER, Verdict.SLOWER, ScreenSign.WORTH_CONFIRMING}
    return _headline(evidence) + (" (a false alarm)" if evidence.plan.aa and alarm else "")


def _headline(evidence: Evidence) -> str:
    decision, plan = evidence.decision, evidence.plan
    one = decision.primary
    prefix = "A/A, no change to find: " if plan.aa else ""
    if decision.is_void or one is None:
        return f"{prefix}{decision.outcome}: {decision.failures[0] if decision.failures else 'no usable samples'}"
    ratio = f"{one.metric.key} patched/base {one.ratio:.4f} [{one.low:.4f}, {one.high:.4f}]"
    if plan.tier is Tier.SCREEN:
        meaning = f"{_size(one)} ({_face_value(one)})" if decision.sign is ScreenSign.WORTH_CONFIRMING else "no clear change"
        return f"{prefix}{decision.outcome}: {ratio} (range of {one.n} pairs), {meaning}"
    tail = f"p = {one.p:.3g}, n = {one.n} generations"
    if decision.verdict in {Verdict.FASTER, Verdict.SLOWER}:
        return f"{prefix}{decision.outcome}: {ratio}, {_size(one)}; {tail}"
    if decision.verdict is Verdict.EQUIVALENT:
        return f"{prefix}{decision.outcome}: {ratio}, within 1 ± {percent(plan.margin, 1)}; {tail}"
    found = "" if one.mde is None else f"; this plan finds {percent(one.mde)} or more"
    if decision.needed is not None and decision.needed_for is not None:
        found += f", {size(decision.needed_for, like=one.effect)} needs about {decision.needed} generations"
    return f"{prefix}{decision.outcome}: {ratio}; {tail}{found}"


def sections(evidence: Evidence) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Title and lines of everything below the table; a section without lines is left out."""
    decision = evidence.decision
    found = (
        ("failed or void", decision.failures),
        ("why", () if decision.failures else decision.reasons),
        ("points", () if decision.failures else point_lines(evidence)),
        ("A/A control", _control(evidence)),
        ("guards", _guards(evidence)),
        ("generations made again", decision.replaced or ("none",)),
        ("notes", decision.notes),
        ("how it was measured", _method(evidence)),
    )
    return tuple((title, lines) for title, lines in found if lines)


def _control(evidence: Evidence) -> tuple[str, ...]:
    decision, plan = evidence.decision, evidence.plan
    lines: list[str] = []
    if plan.aa:
        lines.append("this experiment is an A/A: both arms are base")
    elif not plan.control:
        lines.append("none in this plan")
    lines += [
        f"base against base in this plan: {one.metric.key} {signed(one.control)}"
        for one in (decision.primary, *decision.secondary)
        if one is not None and one.control is not None
    ]
    stored = evidence.history.get(plan.primary.key)
    records = () if stored is None else stored.without(plan.id).records
    if stored is not None and records and (spread := stored.without(plan.id).spread) is not None:
        lines.append(
            f"stored: {count(len(records), 'A/A experiment')}, spread of one generation {percent(spread)} (root mean square)"
        )
    else:
        lines.append("no earlier A/A experiment is stored for this workload, metric, device and mode")
    return tuple(lines)


def _guards(evidence: Evidence) -> tuple[str, ...]:
    counts: dict[str, Counter[GuardState]] = {}
    for sample in evidence.samples:
        if sample.counted:
            for reading in sample.guards:
                counts.setdefault(reading.guard, Counter())[reading.state] += 1
    if not counts:
        return ("no guard was read",)
    return tuple(
        f"{guard}: " + ", ".join(f"{found[state]} {state}" for state in GuardState if found[state])
        for guard, found in sorted(counts.items())
    )


def _method(evidence: Evidence) -> tuple[str, ...]:
    plan, machine = evidence.plan, evidence.machine
    attempts = attempts_of(plan, evidence.samples)
    complete = sum(one.state is AttemptState.COMPLETE for one in attempts)
    order = " ".join(slot.value[0].upper() for slot in plan.generations[0].order)
    mode = "all arms stay up for a generation" if plan.mode is Mode.LIVE else "every run is a fresh process"
    labels = "B base, P patched" + (", C control" if plan.control else "")
    done = f"{complete} of {count(len(plan.generations), 'generation')}, {counted_runs(plan)} runs planned"
    lines = [
        f"{plan.tier}, {plan.mode} mode ({mode}): {done}",
        f"order ({plan.ordering}; {labels}), first generation: {order}",
        f"workload {plan.workload} ({plan.workload_digest[:12]})",
        _what_ran(evidence),
        *(_arm(evidence, slot) for slot in plan.arms),
        f"machine: {machine.fingerprint}, {machine.memory_gib:g} GiB, Linux {machine.kernel}",
    ]
    environments = {slot: arm.environment for slot, arm in evidence.arms.items() if slot is not Slot.CONTROL}
    if environments:
        lines.append("environment: " + ", ".join(sorted(set(environments.values()))))
    lines.append(f"plan {plan.id}, sha256 {evidence.plan_digest[:12]}, made {plan.created} before the first run")
    return tuple(lines)


def _what_ran(evidence: Evidence) -> str:
    workload = evidence.workload
    if isinstance(workload, KernelWorkload):
        return f"kernel workload, {count(len(workload.points), 'point')}, median of {workload.replays} replays each"
    return f"script {workload.script}, model {workload.model}" if workload.model else f"script {workload.script}"


def _arm(evidence: Evidence, slot: Slot) -> str:
    arm = evidence.plan.arms[slot]
    sources = sorted({tree.source for tree in evidence.arms[slot].trees})
    return f"{slot}: {arm.what} at {arm.tip[:12]} ({arm.digest[:12]}), pin from {', '.join(sources)}"
