"""Runs a workload on the engine as released: one arm, fresh processes for each generation, no comparison."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.arms.model import Arm
from harness.arms.resolve import BASE, arm_for
from harness.bench.devices import device_fingerprint
from harness.bench.engines import engine_backend
from harness.bench.kernels import kernel_backend
from harness.bench.locked import MACHINE_LOCK, one_experiment
from harness.context import Context
from harness.errors import EvidenceError, ProbeError, RunError
from harness.experiments import codec
from harness.experiments.machine import Machine, read_machine
from harness.files import write_atomically
from harness.pins.model import Pin
from harness.runs.gpu import open_gpu
from harness.runs.gpu_guards import check_free
from harness.runs.model import Backend, RunRequest, RunResult
from harness.trees.use import using
from harness.vocabulary import Device, GuardState, Mode, Outcome, Slot
from harness.workloads.kernel_model import KernelWorkload
from harness.workloads.model import EngineWorkload, Script

__all__ = ["Measured", "Reproduction", "measure_base", "read_reproduction"]

SCHEMA = 1
AnyWorkload = EngineWorkload | KernelWorkload
ArmMaker = Callable[[Context, Pin, Device], Arm]
BackendMaker = Callable[[Context, Arm, AnyWorkload, Device], Backend]


@dataclass(frozen=True, slots=True)
class Measured:
    """One metric: every counted value in the order of the runs, and the generation that each is of."""

    values: tuple[float, ...]
    generations: tuple[int, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What was found, with all that its numbers depend on."""

    # UTC, ISO 8601.
    written: str
    workload: str
    workload_digest: str
    pin: str
    # The base commit of the tree, and the digest of arm and environment.
    tip: str
    arm: str
    device: str
    machine: Machine
    # Distributions of the environment: name -> version.
    packages: Mapping[str, str]
    metrics: Mapping[str, Measured]
    # Guards that fired in a counted run; such a run is left out.
    disturbed: tuple[str, ...]


def base_arm(context: Context, pin: Pin, device: Device) -> Arm:
    """The pin as released."""
    return arm_for(context.paths, pin, BASE, device, context.progress, mirror=None, name=BASE)


def backend_of(context: Context, arm: Arm, workload: AnyWorkload, device: Device) -> Backend:
    """The backend of the workload's kind with one arm."""
    arms = {Slot.BASE: arm}
    if isinstance(workload, KernelWorkload):
        return kernel_backend(context, arms, workload, device)
    return engine_backend(context, arms, workload, Mode.LIVE if workload.script is Script.SERVE else Mode.PROCESS)


def measure_base(
    context: Context,
    pin: Pin,
    workload: AnyWorkload,
    device: Device,
    *,
    generations: int,
    runs: int,
    seed: int = 0,
    arm_of: ArmMaker = base_arm,
    backend_maker: BackendMaker = backend_of,
) -> tuple[Reproduction, Path]:
    """Measure and store in upstream/state; also the folder.

    Raises ProbeError without the device, RunError when the engine fails, a GPU is in use, or every run was disturbed.
    """
    fingerprint = device_fingerprint(device, read_machine())
    if device is Device.CUDA:
        try:
            check_free(open_gpu())
        except ProbeError as error:
            context.progress.warn(f"the guards of the GPU are absent: {error}")
    arm = arm_of(context, pin, device)
    moment = datetime.datetime.now(datetime.UTC)
    name = f"{workload.engine}/{workload.name}"
    folder = context.paths.experiments / f"{moment:%Y%m%d-%H%M%S}-repro-{name.replace('/', '-')}"
    held = [*(tree.path for tree in arm.trees), arm.environment.prefix.parent]
    with one_experiment(MACHINE_LOCK), using(context.paths, held):
        backend = backend_maker(context, arm, workload, device)
        results = [
            (number, result)
            for number in range(1, generations + 1)
            for result in _generation(
                context, backend, number, runs=runs, warmups=workload.warmup_runs, seed=seed, folder=folder
            )
        ]
    found = Reproduction(
        written=moment.isoformat(timespec="seconds"),
        workload=name,
        workload_digest=workload.digest,
        pin=pin.name,
        tip=arm.trees[0].tip,
        arm=arm.digest,
        device=fingerprint,
        machine=read_machine(),
        packages=dict(arm.environment.packages),
        metrics=_metrics(results),
        disturbed=tuple(text for _, result in results for text in _fired(result)),
    )
    if not found.metrics:
        raise RunError(f"every run was disturbed, so there is no number: {'; '.join(found.disturbed)}")
    write_atomically(folder / "result.json", codec.pretty({"schema": SCHEMA, "result": codec.encode(found)}), EvidenceError)
    return found, folder


def _generation(
    context: Context, backend: Backend, number: int, *, runs: int, warmups: int, seed: int, folder: Path
) -> list[RunResult]:
    directory = folder / f"generation-{number}"
    session = backend.open((Slot.BASE,), number, directory)[Slot.BASE]
    if isinstance(session, RunResult):
        raise RunError(f"the engine did not start: {session.outcome}: {session.detail}{_log(session)}")
    kept = []
    try:
        for position in (*range(-warmups, 0), *range(1, runs + 1)):
            what = f"run {position} of {runs}" if position > 0 else "warm-up"
            context.progress.say(f"generation {number}: {what}")
            where = directory / (f"run-{position}" if position > 0 else f"warm-up{position}")
            result = session.run(RunRequest(number, position, Slot.BASE, seed + position, where))
            if result.outcome is Outcome.INTERRUPTED:
                raise KeyboardInterrupt
            if result.outcome is not Outcome.OK:
                raise RunError(f"generation {number}, {what}: {result.outcome}: {result.detail}{_log(result)}")
            if position > 0:
                kept.append(result)
    finally:
        session.close()
    return kept


def _log(result: RunResult) -> str:
    return f"; log: {result.log}" if result.log else ""


def _fired(result: RunResult) -> list[str]:
    return [f"{one.guard}: {one.detail}" for one in result.guards if one.state is GuardState.FIRED]


def _metrics(results: Sequence[tuple[int, RunResult]]) -> dict[str, Measured]:
    values: dict[str, list[tuple[int, float]]] = {}
    for number, result in results:
        if _fired(result):
            continue
        for key, value in result.metrics.items():
            values.setdefault(key, []).append((number, float(value)))
    return {key: Measured(tuple(value for _, value in all_), tuple(n for n, _ in all_)) for key, all_ in values.items()}


def read_reproduction(file: Path) -> Reproduction:
    """Read a stored result strictly. Raises EvidenceError."""
    try:
        data = codec.parse(file.read_text(encoding="utf-8"), str(file))
    except OSError as error:
        raise EvidenceError(f"cannot read {file}: {error.strerror}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise EvidenceError(f"{file} has no schema version {SCHEMA}: it is no result of repro, or of another version")
    return codec.decode(Reproduction, data.get("result"), str(file))
