"""What the bench sessions of the three engines share: device and workload where nobody named them, and the backend."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from harness.arms.model import Arm
from harness.bench.command import run_bench
from harness.bench.devices import AUTO
from harness.bench.request import BenchRequest, request_of
from harness.context import Context
from harness.errors import ProbeError, UsageError
from harness.runs.engine_backend import EngineBackend
from harness.runs.gpu_guards import watch_of_device
from harness.runs.model import Backend
from harness.series.reader import list_series, read_series
from harness.vocabulary import Device, Engine, ExitCode, Mode, Slot
from harness.workloads.kernel_reader import list_kernel_workloads, read_kernel_workload
from harness.workloads.model import EngineWorkload
from harness.workloads.reader import list_workloads, read_workload
from harness.workloads.synthetic import make_model

__all__ = ["bench_engine", "engine_backend", "require_gpu", "settle"]


@dataclass(frozen=True, slots=True)
class Session:
    """What is particular to an engine's session: the workloads by device when nobody names one."""

    engine: Engine
    defaults: Mapping[Device, str]


def bench_engine(args: argparse.Namespace, context: Context, session: Session) -> ExitCode:
    """Settle device and workload, say them, and run the session. Raises UsageError where nothing is compared."""
    request = request_of(args)
    if request.resume is None:
        if not request.patched and not request.aa:
            raise UsageError(
                "say what is compared: --patched SERIES, a ref or the path of your own checkout; or --aa for the noise of this "
                f"machine (there is no default {session.engine} series)"
            )
        request = settle(context, request, session, automatic=args.device == AUTO)
        if request.device is Device.CUDA and not request.dry_run:
            require_gpu(context, session.engine)
    default = request.workload or next(iter(session.defaults.values()))
    return run_bench(context, session.engine, request, engine_backend, default_workload=default)


def settle(context: Context, request: BenchRequest, session: Session, *, automatic: bool) -> BenchRequest:
    """The request with its workload and a device that the workload has; what was chosen for the person is said.

    A workload that is named decides; else the first of the series that runs on the device; else the engine's default.
    Raises WorkloadError for an unknown workload, UsageError where no workload is for the device that was asked for.
    """
    named = _candidates(context, request, session)
    devices = {name: _devices(context, name) for name in named}
    fitting = [name for name in named if request.device in devices[name]]
    if fitting:
        chosen = dataclasses.replace(request, workload=fitting[0])
    elif automatic:
        name = named[0]
        chosen = dataclasses.replace(request, workload=name, device=devices[name][0])
    else:
        has = "; ".join(f"{name} is for {', '.join(devices[name])}" for name in named)
        raise UsageError(f"no workload here is for {request.device}: {has}; choose another with --workload")
    # A plan for the CPU says as much itself.
    if (automatic or request.workload is None) and not (request.dry_run and chosen.device is Device.CPU):
        context.progress.say(f"device {chosen.device}, workload {chosen.workload} (choose with --device and --workload)")
    return chosen


def _candidates(context: Context, request: BenchRequest, session: Session) -> tuple[str, ...]:
    if request.workload:
        return (request.workload,)
    series = request.patched in list_series(context.paths)
    listed = tuple(read_series(context.paths, request.patched).workloads) if series else ()
    # An A/A experiment measures the machine, so any workload does; a series is measured by what it names.
    return (*listed, *session.defaults.values()) if request.aa or not listed else listed


def _devices(context: Context, name: str) -> tuple[Device, ...]:
    if name in list_kernel_workloads(context.paths):
        return read_kernel_workload(context.paths, name).devices
    return read_workload(context.paths, name).devices


def require_gpu(context: Context, engine: Engine) -> None:
    """Raises ProbeError, with what the session needs and what can be done without, where there is no NVIDIA driver."""
    if shutil.which("nvidia-smi") is not None:
        return
    known = (*list_workloads(context.paths), *list_kernel_workloads(context.paths))
    mine = [name for name in known if name.startswith(f"{engine}/")]
    cpu = [name for name in mine if Device.CPU in _devices(context, name)]
    without = f"--device cpu runs {', '.join(cpu)}" if cpu else f"none of {engine}'s workloads runs on a CPU"
    raise ProbeError(
        f"nox -s bench_{engine} on a GPU needs an NVIDIA driver for CUDA 13 (nvidia-smi is not there) and a GPU with 30 GB "
        "free for each arm that is up at once (two in a screen, three in a confirm experiment). Here --dry-run prints the plan "
        f"and what it costs, and {without}."
    )


def engine_backend(context: Context, arms: Mapping[Slot, Arm], workload: EngineWorkload, mode: Mode) -> Backend:
    """The backend of an engine's scripts; makes the synthetic model."""
    return EngineBackend(
        arms=arms,
        workload=workload,
        mode=mode,
        # FlashInfer's routines load no model; the folder is never looked at then.
        model=make_model(context.paths, workload.model) if workload.model else context.paths.models,
        progress=context.progress,
        watch_of=watch_of_device(next(iter(arms.values())).environment.device),
    )
