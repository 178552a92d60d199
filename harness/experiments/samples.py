"""One line for each run that was made, and what the lines of a generation add up to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.errors import EvidenceError
from harness.experiments.plan import Plan
from harness.runs.model import GuardReading
from harness.vocabulary import Guard, GuardState, Outcome, Slot

__all__ = ["Attempt", "AttemptState", "Sample", "attempts_of", "is_usable", "ratio_values"]

# These tell of the machine, not of an arm: the generation may be made again. Wrong modules, wrong token counts and
# errors tell of an arm, and so does every failed run.
DISTURBANCES = frozenset(
    {
        Guard.LOAD,
        Guard.MEMORY,
        Guard.COMPILATION,
        Guard.CLOCKS,
        Guard.THROTTLE,
        Guard.TEMPERATURE,
        Guard.POWER,
        Guard.PROCESSES,
        Guard.ECC,
    }
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One execution: a counted run (position 1 and up), a warm-up (-1 and down) or the start of a session (0)."""

    generation: int
    # 0, or how often this generation had been begun before.
    attempt: int
    position: int
    slot: Slot
    seed: int
    outcome: Outcome
    metrics: dict[str, float]
    guards: tuple[GuardReading, ...]
    seconds: float
    detail: str
    # Path of the log, relative to the experiment's folder where it lies in it.
    log: str | None
    # UTC, ISO 8601.
    started: str

    @property
    def counted(self) -> bool:
        return self.position > 0


class AttemptState(StrEnum):
    """COMPLETE counts. FAILED ends the experiment. DISTURBED may be made again within the plan's limit, INTERRUPTED always."""

    COMPLETE = "complete"
    FAILED = "failed"
    DISTURBED = "disturbed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One go at one generation."""

    generation: int
    attempt: int
    state: AttemptState
    # Empty when complete; else what happened, with the log.
    reason: str
    samples: tuple[Sample, ...]


def is_usable(value: float | None) -> bool:
    """Whether a ratio can be made of it: there, finite and positive."""
    return value is not None and math.isfinite(value) and value > 0


def _where(sample: Sample) -> str:
    what = {0: "start"}.get(sample.position, f"run {sample.position}" if sample.counted else f"warm-up {-sample.position}")
    return f"generation {sample.generation}, {what} ({sample.slot})"


def _trouble(sample: Sample, primary: str) -> tuple[AttemptState, str] | None:
    log = f"; log: {sample.log}" if sample.log else ""
    if sample.outcome is Outcome.INTERRUPTED:
        return AttemptState.INTERRUPTED, f"{_where(sample)}: interrupted"
    if sample.outcome is not Outcome.OK:
        last = sample.detail.strip().splitlines()[-1:]
        return AttemptState.FAILED, f"{_where(sample)}: {sample.outcome}" + (f": {last[0]}" if last else "") + log
    if not sample.counted:
        return None
    if not is_usable(sample.metrics.get(primary)):
        given = sample.metrics.get(primary, "missing")
        return AttemptState.FAILED, f"{_where(sample)}: primary metric {primary} is {given}, not a positive number{log}"
    fired = [one for one in sample.guards if one.state is GuardState.FIRED]
    if fired:
        state = AttemptState.DISTURBED if all(one.guard in DISTURBANCES for one in fired) else AttemptState.FAILED
        return state, f"{_where(sample)}: " + "; ".join(f"guard {one.guard}: {one.detail}" for one in fired) + log
    return None


def attempts_of(plan: Plan, samples: Sequence[Sample]) -> tuple[Attempt, ...]:
    """The samples grouped into attempts, each judged. Raises EvidenceError for samples that are not this plan's."""
    groups: dict[tuple[int, int], list[Sample]] = {}
    for sample in samples:
        if not 1 <= sample.generation <= len(plan.generations):
            raise EvidenceError(f"a sample is of generation {sample.generation}; the plan has {len(plan.generations)}")
        groups.setdefault((sample.generation, sample.attempt), []).append(sample)
    judged = tuple(_judge(plan, *key, group) for key, group in sorted(groups.items()))
    complete = [one.generation for one in judged if one.state is AttemptState.COMPLETE]
    twice = sorted({number for number in complete if complete.count(number) > 1})
    if twice:
        raise EvidenceError(f"generation {twice[0]} is complete twice: choosing between them would be cherry-picking")
    return judged


def _judge(plan: Plan, number: int, attempt: int, group: list[Sample]) -> Attempt:
    turns = {turn.position: turn for turn in plan.generation(number).turns}
    seen: set[int] = set()
    for sample in group:
        if not sample.counted:
            continue
        turn = turns.get(sample.position)
        if turn is None or (turn.slot, turn.seed) != (sample.slot, sample.seed) or sample.position in seen:
            raise EvidenceError(f"{_where(sample)}: the plan has no such run, or it is there twice (seed {sample.seed})")
        seen.add(sample.position)
    # A failure outweighs a disturbance, which outweighs an interruption: the worst that was seen names the attempt.
    found = [one for one in (_trouble(sample, plan.primary.key) for sample in group) if one is not None]
    for state in (AttemptState.FAILED, AttemptState.DISTURBED, AttemptState.INTERRUPTED):
        reasons = [reason for one, reason in found if one is state]
        if reasons:
            return Attempt(number, attempt, state, "; ".join(reasons), tuple(group))
    if seen != set(turns):
        reason = f"generation {number}: interrupted after {len(seen)} of {len(turns)} runs"
        return Attempt(number, attempt, AttemptState.INTERRUPTED, reason, tuple(group))
    return Attempt(number, attempt, AttemptState.COMPLETE, "", tuple(group))


def ratio_values(
    plan: Plan, attempts: Sequence[Attempt], metric: str, partner: Slot
) -> tuple[tuple[tuple[float, float], ...], ...] | None:
    """(base, partner) of each pair in each complete generation; None when any value is missing, NaN or not positive."""
    made: list[tuple[tuple[float, float], ...]] = []
    for attempt in attempts:
        if attempt.state is not AttemptState.COMPLETE:
            continue
        values = {one.position: one.metrics.get(metric) for one in attempt.samples if one.counted}
        turns = plan.generation(attempt.generation).turns
        pairs: list[tuple[float, float]] = []
        for one, two in zip(turns[::2], turns[1::2], strict=True):
            if partner not in (one.slot, two.slot):
                continue
            base, other = (one, two) if one.slot is Slot.BASE else (two, one)
            old, new = values[base.position], values[other.position]
            if old is None or new is None or not (is_usable(old) and is_usable(new)):
                return None
            pairs.append((old, new))
        made.append(tuple(pairs))
    return tuple(made)
