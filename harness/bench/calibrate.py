"""Makes A/A experiments until there are as many as asked for; each that is finished is stored at once."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Mapping
from contextlib import ExitStack

from harness.arms.model import Arm
from harness.bench.ahead import AheadBackend
from harness.bench.arms import make_arms
from harness.bench.devices import device_fingerprint
from harness.bench.engines import engine_backend
from harness.bench.experiment import ORIGIN, Inputs, inputs_of, measure, plan_of
from harness.bench.locked import MACHINE_LOCK, one_experiment
from harness.bench.request import BenchRequest
from harness.calibrate.model import SCHEMA, Calibration, Trial, add
from harness.context import Context
from harness.errors import EvidenceError, RunError, UsageError
from harness.experiments import codec
from harness.experiments.machine import read_machine
from harness.experiments.plan import Plan
from harness.experiments.samples import AttemptState, Sample, attempts_of, ratio_values
from harness.experiments.store import ExperimentStore, experiments, read_experiment
from harness.files import write_atomically
from harness.names import nearest
from harness.progress import Progress, duration
from harness.reports.evidence import Evidence
from harness.runs.kernel_backend import KernelBackend
from harness.runs.model import Backend
from harness.vocabulary import Engine, Slot, WorkloadKind
from harness.workloads.kernel_model import KernelWorkload, point_key

__all__ = ["CalibrationRequest", "calibrate", "trial_of"]

# Points of a kernel workload when nobody names them: enough to see that short and long kernels differ.
POINTS = 3
# Generations whose workers are started together: the whole of a live confirm experiment.
AHEAD = 6
# Void experiments in a row after which the machine is too busy to be calibrated.
PATIENCE = 3


@dataclasses.dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """`bench` is an A/A confirm request with its workload; `experiments` how many there shall be in the end."""

    bench: BenchRequest
    engine: Engine
    points: tuple[str, ...]
    experiments: int
    # No experiment is begun after this many seconds; None for no limit.
    seconds: float | None


def calibrate(context: Context, request: CalibrationRequest) -> Calibration:
    """Go on from what is stored for the same workload, device and arm. Raises RunError when the machine is never quiet."""
    bench = request.bench
    inputs = _with_points(inputs_of(context, request.engine, bench, default_workload=str(bench.workload)), request.points)
    device_fingerprint(inputs.device, read_machine())
    arms = make_arms(context, bench, inputs.pin)
    plan = plan_of(context, bench, inputs, arms, bench.seed)
    found = add(context.paths, _describe(plan, inputs, arms))
    if found.trials:
        context.progress.say(f"{len(found.trials)} A/A experiments are stored for this workload, device and arm")
    began, void, look_back = time.monotonic(), 0, True
    while len(found.trials) < request.experiments:
        spent = time.monotonic() - began
        if request.seconds is not None and spent > request.seconds:
            context.progress.warn(f"stopped after {duration(spent)}: the same command goes on")
            break
        number = len(found.trials) + 1
        with context.progress.step(f"A/A experiment {number} of {request.experiments}"), one_experiment(MACHINE_LOCK):
            evidence = _one(context, bench, inputs, arms, seed=bench.seed + number - 1 + void, look_back=look_back)
        look_back = False
        if evidence.decision.is_void:
            void += 1
            context.progress.warn(f"void, not counted: {'; '.join(evidence.decision.failures)}")
            if void >= PATIENCE:
                raise RunError(
                    f"{void} A/A experiments in a row were void, the last one because {evidence.decision.failures[0]}. What is "
                    f"stored is kept ({len(found.trials)} of {request.experiments}); make the machine quiet and go on with the "
                    "same command."
                )
            continue
        void = 0
        found = add(context.paths, found, trial_of(evidence.plan, evidence.samples, found.metrics))
    return found


def _with_points(inputs: Inputs, points: tuple[str, ...]) -> Inputs:
    """A kernel workload with some of its points, which is another workload to all who compare digests."""
    workload = inputs.workload
    if not isinstance(workload, KernelWorkload):
        if points:
            raise UsageError(f"workload {inputs.workload_id} runs an engine's script and has no points; leave out --points")
        return inputs
    unknown = [one for one in points if one not in workload.points]
    if unknown:
        raise UsageError(f"workload {inputs.workload_id} has no point {unknown[0]!r}. {nearest(unknown[0], workload.points)}")
    chosen = points or _spread_out(workload.points)
    digest = hashlib.sha256(f"{workload.digest}\n{chosen}".encode()).hexdigest()
    return dataclasses.replace(inputs, workload=dataclasses.replace(workload, points=chosen, digest=digest))


def _spread_out(points: tuple[str, ...]) -> tuple[str, ...]:
    """The first, the last and what lies between them evenly."""
    if len(points) <= POINTS:
        return points
    last = len(points) - 1
    return tuple(points[round(index * last / (POINTS - 1))] for index in range(POINTS))


def _describe(plan: Plan, inputs: Inputs, arms: Mapping[Slot, Arm]) -> Calibration:
    workload, arm = inputs.workload, arms[Slot.BASE]
    names = {metric.key: metric.unit for metric in workload.metrics}
    points: tuple[str, ...] = ()
    if isinstance(workload, KernelWorkload):
        points = workload.points
        names |= {point_key(state, point): "µs" for state in workload.states for point in points}
    return Calibration(
        schema=SCHEMA,
        engine=workload.engine,
        kind=inputs.kind,
        workload=plan.workload,
        workload_digest=plan.workload_digest,
        points=points,
        device=plan.device,
        mode=plan.mode,
        arm_digest=plan.arms[Slot.BASE].digest,
        software=dict(sorted((name, version) for name, version in arm.environment.packages.items() if name in _TOLD)),
        machine=read_machine(),
        primary=plan.primary.key,
        metrics=names,
        generations=len(plan.generations),
        alpha=plan.alpha,
    )


_TOLD = frozenset({"torch", "triton", *map(str, Engine), "flashinfer-python"})


def _one(
    context: Context, bench: BenchRequest, inputs: Inputs, arms: Mapping[Slot, Arm], *, seed: int, look_back: bool
) -> Evidence:
    """One A/A experiment, or (`look_back`) the rest of one of the same plan that was stopped."""
    plan = plan_of(context, bench, inputs, arms, seed)
    while (context.paths.experiments / plan.id).exists():
        # Ids count whole seconds.
        time.sleep(0.2)
        plan = plan_of(context, bench, inputs, arms, seed)
    kernel = inputs.kind is WorkloadKind.KERNEL
    # Dozens of short experiments: one line each, but the long ones of a server say what they do.
    inner = Context(context.paths, Progress(quiet=True)) if kernel else context
    with ExitStack() as stack:
        stopped = _stopped(context, plan) if look_back else None
        store = stack.enter_context(
            ExperimentStore.create(context.paths, plan) if stopped is None else ExperimentStore.resume(context.paths, stopped)
        )
        write_atomically(store.folder / ORIGIN, codec.pretty(bench.origin), EvidenceError)

        def ahead(backend: Backend) -> Backend:
            if not isinstance(backend, KernelBackend):
                return backend
            wider = AheadBackend(backend, last=len(plan.generations), width=AHEAD)
            stack.callback(wider.close)
            return wider

        return measure(inner, store, inputs, arms, engine_backend, wrap=ahead)


def _stopped(context: Context, plan: Plan) -> str | None:
    """The newest A/A experiment that was stopped between its generations and has the plan that would be made now."""
    for name in reversed(experiments(context.paths)):
        try:
            other, samples = read_experiment(context.paths, name)
        except EvidenceError:
            continue
        # All but the name and the estimates.
        same = plan == dataclasses.replace(
            other,
            id=plan.id,
            created=plan.created,
            start_seconds=plan.start_seconds,
            run_seconds=plan.run_seconds,
        )
        complete = {one.generation for one in attempts_of(other, samples) if one.state is AttemptState.COMPLETE}
        if same and 0 < len(complete) < len(plan.generations):
            context.progress.say(f"going on with {name}: {len(complete)} of {len(plan.generations)} generations are complete")
            return name
    return None


def trial_of(plan: Plan, samples: tuple[Sample, ...], metrics: Mapping[str, str]) -> Trial:
    """A finished A/A experiment's pairs, by metric; a metric that any run lacks is left out."""
    attempts = attempts_of(plan, samples)
    found = {key: ratio_values(plan, attempts, key, Slot.PATCHED) for key in metrics}
    return Trial(plan.id, plan.created, {key: pairs for key, pairs in found.items() if pairs is not None})
