"""Plans, samples and a backend that need no engine, and a noise model with the effects that fool a naive comparison."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from harness.experiments.plan import ArmIdentity, Plan, make_plan
from harness.experiments.samples import Sample
from harness.paths import Paths
from harness.runs.model import RunRequest, RunResult, Session
from harness.vocabulary import Direction, Mode, Outcome, Slot, Tier
from harness.workloads.model import Metric

TPOT = Metric("mean_tpot_ms", "ms", Direction.LOWER)
TTFT = Metric("mean_ttft_ms", "ms", Direction.LOWER)
THROUGHPUT = Metric("output_throughput", "tok/s", Direction.HIGHER)
BASE = ArmIdentity("vllm-0.24.0", "ee0da84ab" + "0" * 31, "b" * 64)
PATCHED = ArmIdentity("vllm/penalties-bin-counts", "1234567890" * 4, "c" * 64)
NOON = datetime.datetime(2026, 12, 1, 12, 0, tzinfo=datetime.UTC)


def plan_of(tier: Tier = Tier.CONFIRM, mode: Mode = Mode.LIVE, **options) -> Plan:
    values = {
        "workload": "serve-penalties",
        "workload_digest": "d" * 64,
        "device": "Test CPU, 2 of 2 cores",
        "base": BASE,
        "patched": BASE if options.get("aa") else PATCHED,
        "primary": TPOT,
        "now": NOON,
        "seed": 7,
    }
    return make_plan(tier=tier, mode=mode, **(values | options))


def sample(plan: Plan, generation: int, position: int, value: float, **changes) -> Sample:
    turn = plan.generation(generation).turns[position - 1]
    values = {
        "generation": generation,
        "attempt": 0,
        "position": position,
        "slot": turn.slot,
        "seed": turn.seed,
        "outcome": Outcome.OK,
        "metrics": {plan.primary.key: value},
        "guards": (),
        "seconds": 5.0,
        "detail": "",
        "log": None,
        "started": "2026-12-01T12:00:00+00:00",
    }
    return Sample(**(values | changes))


def samples_of(plan: Plan, value: Callable[[int, int, Slot], float]) -> list[Sample]:
    """All counted runs of a plan; `value(generation, position, slot)` is the primary metric."""
    return [
        sample(plan, one.number, turn.position, value(one.number, turn.position, turn.slot))
        for one in plan.generations
        for turn in one.turns
    ]


@dataclass(frozen=True)
class NoiseModel:
    """Relative sizes: 0.01 is 1 %. Nothing here but `change` differs between the arms."""

    change: float = 0.0
    run_noise: float = 0.003
    # An offset that a process keeps for its whole life.
    process_offset: float = 0.003
    # AR(1) over the runs of the experiment, with this stationary size and correlation.
    drift: float = 0.003
    correlation: float = 0.9
    # The first runs after a start are slower, decaying over three runs.
    ramp: float = 0.01
    # The second run of a pair finds caches warm.
    first_in_pair: float = 0.002

    def draw(self, plan: Plan, generator: np.random.Generator) -> list[Sample]:
        runs = sum(len(one.turns) for one in plan.generations)
        steps = generator.normal(size=runs) * self.drift * (1 - self.correlation**2) ** 0.5
        drift = np.empty(runs)
        level = generator.normal() * self.drift
        for index, step in enumerate(steps):
            level = self.correlation * level + step
            drift[index] = level
        noise = generator.normal(size=runs) * self.run_noise
        live = plan.mode is Mode.LIVE
        made: list[Sample] = []
        for one in plan.generations:
            offsets = {slot: generator.normal() * self.process_offset for slot in one.slots}
            for turn in one.turns:
                index = len(made)
                offset = offsets[turn.slot] if live else generator.normal() * self.process_offset
                # Live: servers warm up after each start. Process: the machine warms up over the experiment.
                age = turn.position - 1 if live else index
                log = offset + drift[index] + noise[index] + self.ramp * np.exp(-age / 3)
                log += self.first_in_pair if turn.position % 2 == 1 else 0.0
                log += np.log1p(self.change) if turn.slot is Slot.PATCHED else 0.0
                made.append(sample(plan, one.number, turn.position, float(33.0 * np.exp(log))))
        return made


@dataclass
class FakeSession:
    backend: FakeBackend
    slot: Slot
    closed: int = 0

    def run(self, request: RunRequest) -> RunResult:
        self.backend.requests.append(request)
        request.directory.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        time.sleep(self.backend.run_seconds)
        result = self.backend.result(request)
        if result.seconds:
            return result
        return RunResult(result.outcome, result.metrics, result.guards, time.monotonic() - began, result.detail, result.log)

    def close(self) -> None:
        self.closed += 1


def steady(request: RunRequest) -> RunResult:
    """Patched takes nine tenths of base."""
    return RunResult(Outcome.OK, {TPOT.key: (30.0 if request.slot is Slot.PATCHED else 33.0) + 0.01 * (request.seed % 10)})


@dataclass
class FakeBackend:
    result: Callable[[RunRequest], RunResult] = steady
    run_seconds: float = 0.0
    start: Callable[[int, Slot], RunResult | None] = lambda generation, slot: None
    sessions: list[FakeSession] = field(default_factory=list)
    requests: list[RunRequest] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)

    def open(self, slots: tuple[Slot, ...], generation: int, directory: Path) -> Mapping[Slot, Session | RunResult]:
        self.opened.append(generation)
        made: dict[Slot, Session | RunResult] = {}
        for slot in slots:
            failed = self.start(generation, slot)
            if failed is None:
                session = FakeSession(self, slot)
                self.sessions.append(session)
                made[slot] = session
            else:
                made[slot] = failed
        return made


def paths_in(folder: Path) -> Paths:
    return Paths(root=folder, state=folder / "state")
