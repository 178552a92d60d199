"""Reads workloads/<engine>/<name>.py."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from harness.errors import UnknownWorkloadError, WorkloadError
from harness.names import nearest
from harness.paths import Paths
from harness.timing.workfile import Workfile, WorkfileError, load_workfile
from harness.vocabulary import CacheState, Device, Engine
from harness.workloads.kernel_model import HOST_KEY, KernelWorkload, Published, metric_of

__all__ = ["kernel_workload_file", "list_kernel_workloads", "read_kernel_workload", "read_workfile"]

REPLAYS = 20
WARMUP_RUNS = 1
# Importing an engine takes 10 to 40 s, compiling its kernels in the first run 15 to 35 s a module.
START_TIMEOUT_S = 300.0
RUN_TIMEOUT_S = 900.0
# A file without points is a script of its own.
_HAS_POINTS = re.compile(r"^POINTS\b", re.MULTILINE)


def list_kernel_workloads(paths: Paths) -> tuple[str, ...]:
    """Ids ("vllm/triton_decode") of the kernel workloads of this checkout."""
    found = (path for engine in Engine for path in (paths.workloads / engine).glob("*.py"))
    return tuple(sorted(f"{path.parent.name}/{path.stem}" for path in found if _HAS_POINTS.search(path.read_text("utf-8"))))


def kernel_workload_file(paths: Paths, workload: str) -> Path:
    """Where it is. Raises UnknownWorkloadError, with the nearest names."""
    known = list_kernel_workloads(paths)
    if workload not in known:
        raise UnknownWorkloadError(f"there is no kernel workload {workload!r} in workloads/. {nearest(workload, known)}")
    engine, _, name = workload.partition("/")
    return paths.workloads / engine / f"{name}.py"


def read_kernel_workload(paths: Paths, workload: str) -> KernelWorkload:
    """Read and check a workload without its engine. Raises WorkloadError that names the file and what it lacks."""
    path = kernel_workload_file(paths, workload)
    work = read_workfile(path)
    engine, _, name = workload.partition("/")
    has_host = (HOST_KEY,) if work.host is not None else ()
    states = (*(state.value for state in CacheState), *has_host)
    return KernelWorkload(
        engine=Engine(engine),
        name=name,
        why=work.why,
        devices=_devices(work, path),
        file=str(path.relative_to(paths.root)),
        points=tuple(work.by_name),
        states=states,
        primary=metric_of(work.primary),
        secondary=tuple(metric_of(state) for state in states if state != work.primary),
        variants={key: str(variant.get("what", "")) for key, variant in work.variants.items()},
        published=tuple(Published(**one) for one in work.published),
        replays=REPLAYS,
        warmup_runs=WARMUP_RUNS,
        start_timeout_s=START_TIMEOUT_S,
        run_timeout_s=RUN_TIMEOUT_S,
        links=work.links,
        digest=hashlib.sha256(path.read_bytes() + f"\n{REPLAYS} {states}".encode()).hexdigest(),
    )


def read_workfile(path: Path) -> Workfile:
    """The file's description and functions. Raises WorkloadError."""
    try:
        return load_workfile(path)
    except WorkfileError as error:
        raise WorkloadError(str(error)) from error


def _devices(work: Workfile, path: Path) -> tuple[Device, ...]:
    try:
        return tuple(Device(one) for one in work.devices)
    except ValueError as error:
        raise WorkloadError(f"{path}: DEVICES holds {error}; give any of {', '.join(Device)}") from error
