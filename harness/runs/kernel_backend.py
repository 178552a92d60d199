"""Runs a kernel workload on the arms of an experiment: a worker an arm, all up for a generation; a run is all points once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Protocol

from harness.arms.model import Arm
from harness.arms.modules import check_modules
from harness.arms.variables import RECORD_VARIABLE, arm_environment
from harness.errors import EvidenceError
from harness.files import write_atomically
from harness.progress import Progress
from harness.runs.kernel_names import told
from harness.runs.kernel_worker import KernelWorker, PointResult
from harness.runs.model import GuardReading, RunRequest, RunResult, Session
from harness.runs.process import make_folder, stop_orphans
from harness.runs.server import ServerFailure
from harness.timing.point import Settings
from harness.vocabulary import Device, Guard, GuardState, Outcome, Slot
from harness.workloads.kernel_model import ERROR_KEY, KernelWorkload, point_key, summary_key

__all__ = ["KernelBackend", "Watch", "guards_of", "metrics_of"]

# What all workers together may keep of the device's memory; the rest is for engines' workspaces and the graphs.
KEPT_SHARE = 0.6
POINTS_FILE = "points.json"
# Readings of a worker that a run always has, fired or not.
READ = (Guard.RESULTS, Guard.FLOOR, Guard.SPAN, Guard.COMPILATION)
SHOWN = 3

ModuleCheck = Callable[[Arm, Path], GuardReading]
ArmEnvironment = Callable[[Arm, Mapping[str, str]], dict[str, str]]


class Watch(Protocol):
    """Looks at the machine from when it was made until it is asked."""

    def readings(self) -> tuple[GuardReading, ...]: ...


@dataclass(frozen=True, slots=True)
class KernelBackend:
    """harness.runs.model.Backend for a kernel workload. `root` is the checkout; `watch_of` begins to watch the machine."""

    arms: Mapping[Slot, Arm]
    workload: KernelWorkload
    device: Device
    root: Path
    progress: Progress
    watch_of: Callable[[], Watch]
    environment_of: ArmEnvironment = arm_environment
    modules_of: ModuleCheck = check_modules
    # Points of the workload that are measured; empty for all.
    points: tuple[str, ...] = ()

    def open(self, slots: tuple[Slot, ...], generation: int, directory: Path) -> Mapping[Slot, Session | RunResult]:
        """Start a worker for each slot, all at once; each is up, or has failed, on return."""
        ((_, opened),) = self.open_generations(slots, {generation: directory})
        return opened

    def open_generations(
        self, slots: tuple[Slot, ...], directories: Mapping[int, Path]
    ) -> tuple[tuple[int, Mapping[Slot, Session | RunResult]], ...]:
        """Start the workers of several generations (number -> folder) at once: starting costs more than measuring."""
        for orphan in stop_orphans():
            self.progress.warn(f"stopped {orphan}, left behind by a harness that was killed")
        started: list[tuple[int, Slot, _Session]] = []
        opened: dict[int, dict[Slot, Session | RunResult]] = {number: {} for number in directories}
        workers = len(slots) * len(directories)
        numbers = ", ".join(map(str, directories))
        try:
            # All by this thread: the kernel ends a worker when the thread that started it ends.
            for number, directory in directories.items():
                started += [(number, slot, self._start(slot, directory / slot, workers)) for slot in slots]
            with self.progress.step(f"generation {numbers}: starting {workers} workers"):
                for number, slot, session in started:
                    opened[number][slot] = self._ready(session)
        except BaseException:
            for _, _, session in started:
                session.close()
            raise
        return tuple(opened.items())

    def _start(self, slot: Slot, directory: Path, workers: int) -> _Session:
        arm = self.arms[slot]
        records = directory / "modules"
        make_folder(records)
        worker = KernelWorker(
            arm.command,
            environment=self.environment_of(arm, {RECORD_VARIABLE: str(records)}),
            directory=directory,
            file=self.root / self.workload.file,
            device=self.device.value,
            kernels=self.root / "kernels",
            name=f"{slot} worker",
        )
        return _Session(self, slot, directory, worker, workers)

    def _ready(self, session: _Session) -> Session | RunResult:
        try:
            hello = session.worker.wait_ready(self.workload.start_timeout_s)
        except ServerFailure as failure:
            return RunResult(failure.outcome, detail=failure.detail, log=failure.log)
        self.progress.say(f"{session.slot} worker up on {hello.device}, times by {hello.mode}")
        return session


@dataclass(slots=True)
class _Session:
    """A worker that is up."""

    backend: KernelBackend
    slot: Slot
    directory: Path
    worker: KernelWorker
    # How many workers share the device's memory.
    workers: int
    # The kernels of the worker's first run, by point and state.
    first: Mapping[str, Mapping[str, int]] | None = None

    def run(self, request: RunRequest) -> RunResult:
        make_folder(request.directory)
        start = time.monotonic()
        workload = self.backend.workload
        # The seed is the experiment's, not the run's: points that are kept must stay what they are.
        settings = Settings(states=workload.states, replays=workload.replays)
        keep = 0 if self.worker.hello is None else int(self.worker.hello.memory_bytes * KEPT_SHARE / self.workers)
        watch = self.backend.watch_of()
        results: list[PointResult] = []
        try:
            for one in self.worker.measure(
                settings, points=self.backend.points, keep_bytes=keep, timeout_s=workload.run_timeout_s
            ):
                results.append(one)
                if one.outcome is not Outcome.OK:
                    return self._failed(one, results, request.directory, start)
        except ServerFailure as failure:
            where = f" after {len(results)} of {len(self.backend.points or workload.points)} points" if results else ""
            return RunResult(failure.outcome, detail=failure.detail + where, log=failure.log, seconds=time.monotonic() - start)
        _store(request.directory / POINTS_FILE, results)
        if self.first is None:
            self.first = kernels_of(results)
        guards = (
            *guards_of(results, self.first),
            *watch.readings(),
            self.backend.modules_of(self.backend.arms[self.slot], self._records),
        )
        names = told(name for by in kernels_of(results).values() for name in by)
        metrics, seconds = metrics_of(results, workload.states), time.monotonic() - start
        return RunResult(Outcome.OK, metrics, guards, seconds, detail=names, log=self.worker.log)

    def _failed(self, one: PointResult, results: Sequence[PointResult], directory: Path, start: float) -> RunResult:
        # After an illegal access the whole CUDA context is lost, so the worker is not used again.
        self.worker.stop()
        _store(directory / POINTS_FILE, results)
        detail = f"point {one.point}: {one.detail}"
        return RunResult(one.outcome, detail=detail, log=self.worker.log, seconds=time.monotonic() - start)

    @property
    def _records(self) -> Path:
        return self.directory / "modules"

    def close(self) -> None:
        self.worker.stop()


def _store(file: Path, results: Sequence[PointResult]) -> None:
    """Every raw sample of a run, beside its log."""
    write_atomically(file, json.dumps([asdict(one) for one in results], ensure_ascii=False) + "\n", EvidenceError)


def metrics_of(results: Sequence[PointResult], states: Sequence[str]) -> dict[str, float]:
    """µs and error of every point, and each state's geometric mean if every measured point has it; a missing one is missing."""
    measured = [one for one in results if not one.skipped]
    found: dict[str, float] = {}
    for state in states:
        values = {one.point: one.times[state].us for one in measured if state in one.times}
        if values and len(values) == len(measured):
            found[summary_key(state)] = geometric_mean(list(values.values()))
        found |= {point_key(state, point): value for point, value in values.items()}
    found |= {point_key(ERROR_KEY, one.point): max(one.errors.values()) for one in measured if one.errors}
    return found


def kernels_of(results: Sequence[PointResult]) -> dict[str, Mapping[str, int]]:
    """Kernels of one replay, by "state/POINT", where the driver told them."""
    return {point_key(state, one.point): names for one in results for state, names in one.kernels.items()}


def guards_of(results: Sequence[PointResult], first: Mapping[str, Mapping[str, int]] | None = None) -> tuple[GuardReading, ...]:
    """One reading a guard over all points. As part of the span counts that every point was timed in the same way, and that the
    same kernels ran as in the worker's first run.
    """
    readings = []
    modes = sorted({one.mode for one in results if one.mode})
    for guard in READ:
        fired = [f"{one.point}: {detail}" for one in results for detail in one.fired.get(guard, ())]
        if guard is Guard.SPAN and len(modes) > 1:
            fired.append(f"points were timed in different ways: {', '.join(modes)}")
        if guard is Guard.SPAN and first is not None:
            other = [key for key, names in kernels_of(results).items() if names != first.get(key)]
            fired += [f"{key}: other kernels ran than in the worker's first run" for key in other]
        absent = [one.absent[guard] for one in results if guard in one.absent]
        if fired:
            more = f"; and {len(fired) - SHOWN} more" if len(fired) > SHOWN else ""
            readings.append(GuardReading(guard, GuardState.FIRED, "; ".join(fired[:SHOWN]) + more))
        elif absent:
            readings.append(GuardReading(guard, GuardState.ABSENT, absent[0]))
        else:
            readings.append(GuardReading(guard, GuardState.PASSED, _passed(guard, results, modes)))
    return tuple(readings)


def _passed(guard: Guard, results: Sequence[PointResult], modes: Sequence[str]) -> str:
    count = sum(not one.skipped for one in results)
    if guard is Guard.RESULTS:
        worst = max((error for one in results for error in one.errors.values()), default=0.0)
        return f"outputs of {count} points right before and after, largest relative error {worst:.2g}"
    if guard is Guard.SPAN:
        return f"{count} points timed by {', '.join(modes)}, nothing ran on after the span"
    if guard is Guard.FLOOR:
        return f"{count} points above what the hardware allows"
    return "nothing was compiled or loaded in the timed windows"
