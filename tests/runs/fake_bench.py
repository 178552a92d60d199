"""A backend whose arms run the stand-in for vLLM and differ in environment variables alone."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import psutil

from harness.arms.model import Arm, Environment
from harness.experiments.execute import execute
from harness.experiments.plan import Plan
from harness.experiments.samples import Sample
from harness.experiments.store import ExperimentStore
from harness.progress import Progress
from harness.runs.engine_backend import EngineBackend
from harness.runs.model import GuardReading, RunRequest, RunResult
from harness.vocabulary import Device, Direction, Engine, Guard, GuardState, Mode, Slot
from harness.workloads.model import EngineWorkload, Metric, Script, TokenCounts
from tests.experiments.experiment_fakes import paths_in
from tests.runs.fake_vllm import FAKE_VLLM

PAIR = (Slot.BASE, Slot.PATCHED)

WORKLOAD = EngineWorkload(
    engine=Engine.VLLM,
    name="fake",
    why="for tests",
    script=Script.SERVE,
    devices=(Device.CPU,),
    model="tiny",
    server_arguments=(),
    arguments=(),
    variables={},
    primary=Metric("mean_tpot_ms", "ms", Direction.LOWER),
    secondary=(Metric("output_throughput", "tokens/s", Direction.HIGHER),),
    tokens=TokenCounts(input=40, output=80),
    warmup_runs=0,
    start_timeout_s=20.0,
    run_timeout_s=20.0,
    links=(),
    digest="0",
)


class Bench:
    """Makes backends, runs them, and remembers the sessions that it opened."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.opened: list[object] = []
        package = tmp_path / "site" / "vllm" / "entrypoints" / "cli"
        package.mkdir(parents=True)
        (package / "main.py").write_text(FAKE_VLLM)
        # The kernel's counter, which the stand-in raises when it plays the kernel.
        self.vmstat = tmp_path / "vmstat"
        self.vmstat.write_text("pgfault 12\noom_kill 7\n")
        # What earlier tests started and Python keeps to its end, as the resource tracker of multiprocessing.
        self._before = set(psutil.Process().children(recursive=True))

    def left(self) -> set[psutil.Process]:
        """The processes that this test's backends started and that still run."""
        return set(psutil.Process().children(recursive=True)) - self._before

    def backend(
        self, workload: EngineWorkload = WORKLOAD, mode: Mode = Mode.LIVE, ports=None, **fails: dict[str, str]
    ) -> EngineBackend:
        environment = Environment("fake", Device.CPU, self.path, Path(sys.executable), {}, {}, "0")
        common = {"PYTHONPATH": str(self.path / "site"), "FAKE_VMSTAT": str(self.vmstat)}
        arms = {slot: Arm(slot.value, (), environment, {}, {**common, **fails.get(slot.value, {})}, "0") for slot in Slot}
        return EngineBackend(
            arms=arms,
            workload=workload,
            mode=mode,
            model=self.path,
            progress=Progress(io.StringIO(), quiet=True),
            ports=ports or {},
            environment_of=lambda arm, extra: {**os.environ, **arm.variables, **extra},
            modules_of=lambda arm, directory: GuardReading(
                Guard.MODULES, GuardState.PASSED, f"{arm.name} {directory.is_dir()}"
            ),
        )

    def open(self, backend: EngineBackend, slots=PAIR):
        sessions = backend.open(slots, 0, self.path / "generation")
        self.opened += [one for one in sessions.values() if not isinstance(one, RunResult)]
        return sessions

    def request(self, slot: Slot, seed: int = 3) -> RunRequest:
        return RunRequest(0, 0, slot, seed, self.path / "generation" / f"run-{slot}")

    def one(
        self, workload: EngineWorkload = WORKLOAD, mode: Mode = Mode.LIVE, slot: Slot = Slot.PATCHED, **variables: str
    ) -> RunResult:
        backend = self.backend(workload, mode, **{slot.value: variables})
        return self.open(backend, (slot,))[slot].run(self.request(slot))

    def experiment(self, plan: Plan, backend: EngineBackend) -> tuple[Sample, ...]:
        with ExperimentStore.create(paths_in(self.path), plan) as store:
            return execute(plan, backend, store, backend.progress)
