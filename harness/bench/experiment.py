"""One bench session from the request to the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from harness.arms.model import Arm
from harness.arms.overlay import check_arm
from harness.arms.resolve import BASE
from harness.bench.arms import folders_of, is_series, make_arms
from harness.bench.costs import known_costs
from harness.bench.devices import device_fingerprint
from harness.bench.kernels import kernel_backend
from harness.bench.locked import MACHINE_LOCK, one_experiment
from harness.bench.request import BenchRequest, Origin
from harness.calibrate.model import nearest_noise
from harness.calibrate.report import told
from harness.context import Context
from harness.errors import EvidenceError, PlanError, ProbeError, UsageError
from harness.experiments import calibration, codec
from harness.experiments.execute import execute
from harness.experiments.machine import read_machine
from harness.experiments.plan import MARGIN_END_TO_END, MARGIN_KERNEL, ArmIdentity, Plan, make_plan
from harness.experiments.store import ExperimentStore, check_arms
from harness.experiments.verdict import DeviceNoise, decide
from harness.files import write_atomically
from harness.pins.model import Pin
from harness.pins.reader import read_pins
from harness.reports.evidence import Evidence, build_evidence, write_evidence
from harness.reports.markdown import render_markdown
from harness.runs.gpu import open_gpu
from harness.runs.gpu_guards import check_free
from harness.runs.guards import machine_now
from harness.runs.model import Backend
from harness.runs.process import stop_orphans
from harness.series.reader import list_series, read_series
from harness.trees.use import using
from harness.vocabulary import Device, Engine, ExitCode, GuardState, Mode, Slot, WorkloadKind
from harness.workloads.kernel_model import KernelWorkload
from harness.workloads.kernel_reader import list_kernel_workloads, read_kernel_workload
from harness.workloads.model import EngineWorkload, Script
from harness.workloads.reader import read_workload
from harness.workloads.synthetic import model_folder

__all__ = [
    "ORIGIN",
    "BackendMaker",
    "Inputs",
    "exit_code",
    "inputs_of",
    "keep_evidence",
    "measure",
    "plan_of",
    "resume",
    "run_new",
]

AnyWorkload = EngineWorkload | KernelWorkload
# Makes the engine's backend for these arms, with the context for paths and progress; kernel workloads have one for all engines.
BackendMaker = Callable[[Context, Mapping[Slot, Arm], EngineWorkload, Mode], Backend]

NOT_MADE = "not made yet"
# Beside the plan: what the person named that the plan only has digests of, so that resuming can find it again.
ORIGIN = "origin.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """What a request means: the pin, the workload and the mode."""

    pin: Pin
    workload: AnyWorkload
    mode: Mode
    device: Device

    @property
    def kind(self) -> WorkloadKind:
        return WorkloadKind.KERNEL if isinstance(self.workload, KernelWorkload) else WorkloadKind.ENGINE

    @property
    def workload_id(self) -> str:
        return f"{self.workload.engine}/{self.workload.name}"

    @property
    def margin(self) -> float:
        """Half width of "equivalent": a kernel's time is steadier than an engine's."""
        return MARGIN_KERNEL if self.kind is WorkloadKind.KERNEL else MARGIN_END_TO_END


def inputs_of(context: Context, engine: Engine, request: BenchRequest, *, default_workload: str) -> Inputs:
    """Read pin and workload; the series' first workload where none is named. Makes nothing yet."""
    pin = read_pins(context.paths.pins_file).find(engine, request.pin)
    # In an A/A experiment the series is not run; it only says which workload.
    series = request.patched in list_series(context.paths) if request.aa else is_series(context, request.patched)
    if request.keep and not series:
        raise UsageError(f"--keep stores evidence with a series, and {request.patched!r} is none")
    name = request.workload
    if name is None:
        workloads = read_series(context.paths, request.patched).workloads if series else ()
        name = workloads[0] if workloads else default_workload
    workload = _workload(context, name, request)
    if workload.engine is not engine:
        raise UsageError(f"workload {name} is for {workload.engine}, this session runs {engine}")
    if request.device not in workload.devices:
        raise UsageError(
            f"workload {name} is for {', '.join(workload.devices)}, not for {request.device}; choose another with --workload"
        )
    return Inputs(pin, workload, _mode(name, workload, request), request.device)


def _workload(context: Context, name: str, request: BenchRequest) -> AnyWorkload:
    if name not in list_kernel_workloads(context.paths):
        return read_workload(context.paths, name, request.model)
    if request.model is not None:
        raise UsageError(f"workload {name} calls a kernel and loads no model; leave out --model")
    return read_kernel_workload(context.paths, name)


def _mode(name: str, workload: AnyWorkload, request: BenchRequest) -> Mode:
    if isinstance(workload, KernelWorkload):
        if request.mode is Mode.PROCESS:
            raise UsageError(f"workload {name} calls a kernel: its workers stay up for a generation, so its mode is live")
        return Mode.LIVE
    mode = request.mode or (Mode.LIVE if workload.script is Script.SERVE else Mode.PROCESS)
    if mode is Mode.LIVE and workload.script is not Script.SERVE:
        raise UsageError(f"workload {name} runs a script that ends, so it has no live mode; use --mode process")
    return mode


def plan_of(context: Context, request: BenchRequest, inputs: Inputs, arms: Mapping[Slot, Arm] | None, seed: int) -> Plan:
    """The plan; without arms (dry run) their digests are placeholders."""
    costs = known_costs(context.paths, inputs.workload_id, inputs.mode)

    def identity(slot: Slot, what: str) -> ArmIdentity:
        return ArmIdentity(what, NOT_MADE, f"{NOT_MADE}: {what}") if arms is None else _identity(arms[slot], what)

    return make_plan(
        tier=request.tier,
        mode=inputs.mode,
        workload=inputs.workload_id,
        workload_digest=inputs.workload.digest,
        device=NOT_MADE if arms is None and inputs.device is Device.CUDA else device_fingerprint(inputs.device, read_machine()),
        base=identity(Slot.BASE, BASE),
        patched=identity(Slot.PATCHED, BASE if request.aa else request.patched),
        primary=inputs.workload.primary,
        secondary=inputs.workload.secondary,
        warmup_runs=inputs.workload.warmup_runs,
        generations=request.generations,
        blocks=request.blocks,
        aa=request.aa,
        margin=inputs.margin,
        start_seconds=costs.start_seconds,
        run_seconds=costs.run_seconds,
        seed=seed,
    )


def run_new(context: Context, request: BenchRequest, inputs: Inputs, maker: BackendMaker) -> Iterator[Evidence]:
    """Make `request.repeat` experiments, giving each one's evidence as it ends; each has its own seed, so its own prompts."""
    # First, since what a machine without a GPU lacks is cheaper to say before trees and environments are made.
    device_fingerprint(inputs.device, read_machine())
    arms = make_arms(context, request, inputs.pin)
    for number in range(request.repeat):
        plan = plan_of(context, request, inputs, arms, request.seed + number)
        if request.repeat > 1:
            context.progress.say(f"experiment {number + 1} of {request.repeat}: {plan.id}")
        with one_experiment(MACHINE_LOCK), ExperimentStore.create(context.paths, plan) as store:
            write_atomically(store.folder / ORIGIN, codec.pretty(request.origin), EvidenceError)
            evidence = measure(context, store, inputs, arms, maker)
        yield evidence


def resume(context: Context, request: BenchRequest, engine: Engine, maker: BackendMaker) -> Evidence:
    """Go on with a stopped experiment. Raises PlanError when an arm or the workload is no longer what was planned."""
    if request.resume is None:
        raise UsageError("nothing to resume: give the experiment's id")
    with one_experiment(MACHINE_LOCK), ExperimentStore.resume(context.paths, request.resume) as store:
        plan = store.plan
        here = device_fingerprint(_origin(store).device, read_machine())
        if plan.device != here:
            raise PlanError(
                f"experiment {plan.id} was begun on another machine ({plan.device}; this is {here}); samples of two machines "
                "do not go together: start a new experiment"
            )
        asked = dataclasses.replace(
            request.with_origin(_origin(store)), workload=plan.workload, mode=plan.mode, tier=plan.tier, aa=plan.aa
        )
        inputs = inputs_of(context, engine, asked, default_workload=plan.workload)
        if inputs.workload.digest != plan.workload_digest:
            raise UsageError(
                f"workload {plan.workload} changed since experiment {plan.id} was planned (sha256 "
                f"{plan.workload_digest[:12]}, now {inputs.workload.digest[:12]}); start a new experiment"
            )
        arms = make_arms(context, asked, inputs.pin)
        check_arms(plan, {slot: _identity(arm, plan.arms[slot].what) for slot, arm in arms.items() if slot in plan.arms})
        return measure(context, store, inputs, arms, maker)


def measure(
    context: Context,
    store: ExperimentStore,
    inputs: Inputs,
    arms: Mapping[Slot, Arm],
    maker: BackendMaker,
    *,
    wrap: Callable[[Backend], Backend] = lambda backend: backend,
) -> Evidence:
    """Make what is open of the store's plan, judge it, write evidence, report and A/A record. `wrap` changes the backend."""
    plan = store.plan
    slots = {slot: arms[slot] for slot in plan.arms}
    context.progress.say(f"experiment {plan.id}, plan sha256 {plan.digest[:12]}, in {store.folder}")
    for reading in machine_now():
        if reading.state is GuardState.FIRED:
            context.progress.warn(f"runs on this machine as it is now would be void, {reading.guard} guard: {reading.detail}")
    if inputs.device is Device.CUDA:
        _check_gpu(context)
    held = folders_of(slots.values()) | {store.folder}
    if isinstance(inputs.workload, EngineWorkload) and inputs.workload.model:
        held |= {model_folder(context.paths, inputs.workload.model)}
    with using(context.paths, sorted(held)):
        for arm in slots.values():
            # Between making and holding them another process may have cleaned or repointed something.
            check_arm(arm)
        backend: Backend = (
            kernel_backend(context, slots, inputs.workload, inputs.device)
            if isinstance(inputs.workload, KernelWorkload)
            else maker(context, slots, inputs.workload, plan.mode)
        )
        samples = execute(plan, wrap(backend), store, context.progress)
    history = {key: one.without(plan.id) for key, one in calibration.load_all(context.paths, plan).items()}
    decision = decide(plan, samples, history, _device_noise(context, plan, inputs))
    evidence = build_evidence(
        plan, samples, decision, machine=read_machine(), arms=slots, history=history, workload=inputs.workload
    )
    write_evidence(store.folder / "evidence.json", evidence)
    write_atomically(store.folder / "report.md", render_markdown(evidence), EvidenceError)
    if not decision.is_void:
        calibration.record_experiment(context.paths, plan, samples)
    return evidence


def _device_noise(context: Context, plan: Plan, inputs: Inputs) -> DeviceNoise | None:
    """What the device was calibrated to for the primary metric; None where it was not."""
    found = nearest_noise(
        context.paths,
        metric=plan.primary.key,
        device=plan.device,
        mode=plan.mode,
        engine=inputs.workload.engine,
        kind=inputs.kind,
    )
    if found is None or plan.aa:
        return None
    calibrated, noise = found
    return DeviceNoise(noise.spread, told(calibrated, plan.primary.key))


def _check_gpu(context: Context) -> None:
    """Raises RunError when others use the GPU; where NVML cannot be read, says that its guards will be absent."""
    for orphan in stop_orphans():
        context.progress.warn(f"stopped {orphan}, left behind by a harness that was killed")
    try:
        reader = open_gpu()
    except ProbeError as error:
        context.progress.warn(f"the guards of the GPU are absent: {error}")
        return
    check_free(reader)


def _identity(arm: Arm, what: str) -> ArmIdentity:
    # The last tree is the one that is named: an arm that combines engines has another one's base before it.
    return ArmIdentity(what, arm.trees[-1].tip, arm.digest)


def _origin(store: ExperimentStore) -> Origin:
    file = store.folder / ORIGIN
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise EvidenceError(
            f"cannot read {file}: {error.strerror}. Without it the experiment cannot go on; plan anew."
        ) from error
    return codec.decode(Origin, codec.parse(text, str(file)), str(file))


def keep_evidence(context: Context, evidence: Evidence) -> tuple[Path, ...]:
    """Copy evidence and report into the folder of the series that was measured; none for a void experiment."""
    if evidence.decision.is_void:
        return ()
    folder = context.paths.patches / evidence.plan.arms[Slot.PATCHED].what / "evidence"
    files = (folder / f"{evidence.plan.id}.json", folder / f"{evidence.plan.id}.md")
    write_evidence(files[0], evidence)
    write_atomically(files[1], render_markdown(evidence), EvidenceError)
    return files


def exit_code(evidence: Evidence, fail_on: frozenset[str]) -> ExitCode:
    """The decision's own code, or ERROR for a result that --fail-on names."""
    outcome = str(evidence.decision.outcome).replace(" ", "-")
    return ExitCode.ERROR if outcome in fail_on else evidence.decision.exit_code
