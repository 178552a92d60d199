"""The plan: everything that is decided before the first run, frozen and hashed."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.errors import EvidenceError, PlanError
from harness.experiments import codec
from harness.experiments.order import Ordering, abba, check_order, pairs_of, shuffled, single_pairs
from harness.experiments.statistics import smallest_p
from harness.vocabulary import Mode, Slot, Tier
from harness.workloads.model import Metric

__all__ = [
    "MARGIN_END_TO_END",
    "MARGIN_KERNEL",
    "SCHEMA",
    "ArmIdentity",
    "Generation",
    "Plan",
    "Turn",
    "make_plan",
    "plan_from_json",
    "plan_to_json",
]

SCHEMA = 1
MARGIN_END_TO_END = 0.01
MARGIN_KERNEL = 0.005

FEWEST_SCREEN_PAIRS = 3
# 2^(1-n) <= 0.05 needs 6; process mode has one pair a generation and takes more of them for the same certainty.
FEWEST_GENERATIONS = {Mode.LIVE: 6, Mode.PROCESS: 10}
SCREEN_BLOCKS = 2
# Restarts average a process's own offset, more runs inside one process cannot: so more generations rather than more blocks.
CONFIRM_BLOCKS = 1
REPLACEMENTS = {Tier.SCREEN: 1, Tier.CONFIRM: 2}
HIGHEST_SEED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ArmIdentity:
    """What an arm was asked to be, the commit it is at, and the digest of all of it (harness.arms.model.Arm.digest)."""

    what: str
    tip: str
    digest: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One counted run. Positions and pairs are numbered from 1; both runs of a pair have the same seed, so the same prompts."""

    position: int
    slot: Slot
    pair: int
    seed: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One set of fresh processes. `warmup_seeds`: runs that every arm makes, and that do not count, before the first turn."""

    number: int
    warmup_seeds: tuple[int, ...]
    turns: tuple[Turn, ...]

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The arms that run, in the order base, patched, control."""
        used = {turn.slot for turn in self.turns}
        return tuple(slot for slot in Slot if slot in used)

    @property
    def order(self) -> tuple[Slot, ...]:
        return tuple(turn.slot for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Plan:
    schema: int
    id: str
    # UTC, ISO 8601.
    created: str
    tier: Tier
    mode: Mode
    # True when "patched" is a second base arm: the experiment measures the method, not a series.
    aa: bool
    ordering: Ordering
    workload: str
    workload_digest: str
    # What A/A records are kept for: harness.experiments.machine.Machine.fingerprint.
    device: str
    arms: Mapping[Slot, ArmIdentity]
    generations: tuple[Generation, ...]
    # How many generations may be made again because a guard saw the machine disturbed. A failed run is never made again.
    replacements: int
    primary: Metric
    secondary: tuple[Metric, ...]
    alpha: float
    # Half width of "equivalent" as a fraction: 0.01 is 1 %.
    margin: float
    # Estimates for the cost, in seconds; None where nothing is known yet.
    start_seconds: float | None
    run_seconds: float | None
    seed: int

    @property
    def digest(self) -> str:
        """sha256 of the plan's content; stored with the plan before the first run and with the evidence after the last."""
        return hashlib.sha256(codec.canonical(self).encode()).hexdigest()

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (self.primary, *self.secondary)

    @property
    def control(self) -> bool:
        return Slot.CONTROL in self.arms

    def generation(self, number: int) -> Generation:
        return self.generations[number - 1]

    def warmups(self, number: int, *, first: bool) -> tuple[int, ...]:
        """Warm-up seeds of a generation. In process mode a warm-up only fills disk and bytecode caches, so once is enough."""
        return self.generation(number).warmup_seeds if self.mode is Mode.LIVE or first else ()


def make_plan(  # noqa: C901  one check a line
    *,
    tier: Tier,
    mode: Mode,
    workload: str,
    workload_digest: str,
    device: str,
    base: ArmIdentity,
    patched: ArmIdentity,
    primary: Metric,
    secondary: Sequence[Metric] = (),
    warmup_runs: int = 1,
    generations: int | None = None,
    blocks: int | None = None,
    control: bool | None = None,
    aa: bool = False,
    ordering: Ordering = Ordering.ABBA,
    replacements: int | None = None,
    alpha: float = 0.05,
    margin: float = MARGIN_END_TO_END,
    start_seconds: float | None = None,
    run_seconds: float | None = None,
    seed: int = 0,
    now: datetime.datetime | None = None,
) -> Plan:
    """Lay out an experiment. `blocks` are ABBA blocks (two pairs each) in a generation; `control` adds base against base.

    Defaults: screen 1 generation of 2 blocks without control; confirm 6 generations (live) or 10 (process) of 1 block
    (process: one pair) with control. An A/A experiment is its own control. `seed` makes the runs' seeds and a random order.
    Raises PlanError when the plan could not give an answer.
    """
    if control is None:
        control = tier is Tier.CONFIRM and not aa
    if generations is None:
        generations = 1 if tier is Tier.SCREEN else FEWEST_GENERATIONS[mode]
    if blocks is None:
        blocks = SCREEN_BLOCKS if tier is Tier.SCREEN else CONFIRM_BLOCKS
    _check_numbers(tier, mode, generations=generations, blocks=blocks, warmup_runs=warmup_runs)
    if aa and base.digest != patched.digest:
        raise PlanError(
            f"an A/A experiment runs one arm twice, but the digests differ: {base.digest[:12]} and {patched.digest[:12]}"
        )
    if not aa and base.digest == patched.digest:
        raise PlanError(
            f"base and patched are the same arm ({base.digest[:12]}): nothing to compare. Use --aa to measure the method."
        )
    if aa and control:
        raise PlanError("an A/A experiment is its own control: leave the control out")
    keys = [metric.key for metric in (primary, *secondary)]
    if tier is Tier.CONFIRM and smallest_p(generations) > alpha:
        raise PlanError(f"{generations} generations give no p below {smallest_p(generations):.3g}, so never {alpha:g} or less")
    if len(set(keys)) != len(keys):
        raise PlanError(f"a metric is named twice: {', '.join(keys)}. One is primary, the others secondary, each once.")
    if not 0 < alpha <= 0.1 or not 0 < margin <= 0.1:
        raise PlanError(f"alpha ({alpha}) and the equivalence margin ({margin}) must be above 0 and at most 0.1")
    moment = (now or datetime.datetime.now(datetime.UTC)).astimezone(datetime.UTC)
    if mode is Mode.PROCESS and tier is Tier.CONFIRM:
        orders = tuple(single_pairs(number, control=control) for number in range(1, generations + 1))
    else:
        orders = tuple(abba(number, blocks=blocks, control=control) for number in range(1, generations + 1))
    if ordering is Ordering.RANDOM:
        orders = shuffled(orders, seed)
    check_order(orders)
    arms = {Slot.BASE: base, Slot.PATCHED: patched} | ({Slot.CONTROL: base} if control else {})
    return Plan(
        schema=SCHEMA,
        id=f"{moment:%Y%m%d-%H%M%S}-{workload}-{'aa-' if aa else ''}{tier}".replace("/", "-"),
        created=moment.isoformat(timespec="seconds"),
        tier=tier,
        mode=mode,
        aa=aa,
        ordering=ordering,
        workload=workload,
        workload_digest=workload_digest,
        device=device,
        arms=arms,
        generations=_number(orders, warmup_runs, seed),
        replacements=REPLACEMENTS[tier] if replacements is None else replacements,
        primary=primary,
        secondary=tuple(secondary),
        alpha=alpha,
        margin=margin,
        start_seconds=start_seconds,
        run_seconds=run_seconds,
        seed=seed,
    )


def _check_numbers(tier: Tier, mode: Mode, *, generations: int, blocks: int, warmup_runs: int) -> None:
    if blocks < 1 or warmup_runs < 0:
        raise PlanError(f"blocks must be 1 or more and warm-up runs 0 or more, not {blocks} and {warmup_runs}")
    if tier is Tier.SCREEN:
        if generations != 1:
            raise PlanError(f"a screen is one generation, not {generations}; for more use --confirm")
        if 2 * blocks < FEWEST_SCREEN_PAIRS:
            raise PlanError(
                f"a screen needs at least {FEWEST_SCREEN_PAIRS} pairs; {blocks} ABBA block gives {2 * blocks}. Use 2 or more."
            )
        return
    fewest = FEWEST_GENERATIONS[mode]
    if generations < fewest:
        raise PlanError(
            f"a confirm experiment in {mode} mode needs at least {fewest} generations, not {generations}: "
            f"with n generations the smallest possible p is 2^(1-n)"
        )
    if mode is Mode.PROCESS and generations % 2:
        raise PlanError(f"process mode needs an even number of generations, not {generations}: each arm is first in half")


def _number(orders: Sequence[tuple[Slot, ...]], warmup_runs: int, seed: int) -> tuple[Generation, ...]:
    generator = np.random.default_rng(seed)
    made: list[Generation] = []
    for number, order in enumerate(orders, start=1):
        warmup_seeds = tuple(int(one) for one in generator.integers(1, HIGHEST_SEED, size=warmup_runs))
        turns: list[Turn] = []
        for pair, slots in enumerate(pairs_of(order), start=1):
            pair_seed = int(generator.integers(1, HIGHEST_SEED))
            turns += [Turn(len(turns) + offset, slot, pair, pair_seed) for offset, slot in enumerate(slots, start=1)]
        made.append(Generation(number, warmup_seeds, tuple(turns)))
    return tuple(made)


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan with its digest, as it is stored."""
    return {"digest": plan.digest, "plan": codec.encode(plan)}


def plan_from_json(data: Any, where: str) -> Plan:
    """The stored plan. Raises EvidenceError for another schema version, a malformed field, or a digest that does not fit."""
    if not isinstance(data, dict) or not isinstance(data.get("plan"), dict) or "digest" not in data:
        raise EvidenceError(f"{where} is not a stored plan (no digest and plan in it)")
    schema = data["plan"].get("schema")
    if schema != SCHEMA:
        raise EvidenceError(
            f"{where} has schema version {schema}, this harness reads {SCHEMA}. Use the version that wrote it, or plan anew."
        )
    plan = codec.decode(Plan, data["plan"], f"{where}: plan")
    if plan.digest != data["digest"]:
        raise EvidenceError(
            f"{where} was changed after it was written: its digest is {plan.digest[:12]}, stored is {str(data['digest'])[:12]}"
        )
    return plan
