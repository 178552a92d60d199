"""A kernel workload: calls of one kernel at many shapes, as harness.timing.workfile reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.vocabulary import CacheState, Device, Direction, Engine
from harness.workloads.model import Metric

__all__ = ["ERROR_KEY", "HOST_KEY", "KernelWorkload", "Published", "point_key", "summary_key"]

HOST_KEY = "host"
# The relative error of a point against its reference stands beside its times: "error/bf16-32/8-b1-1024".
ERROR_KEY = "error"


def summary_key(state: str) -> str:
    """The metric that is the geometric mean over all points: "cold_us"."""
    return f"{state}_us"


def point_key(state: str, point: str) -> str:
    """The metric of one point: "cold/bf16-32/8-b1-1024", in µs."""
    return f"{state}/{point}"


@dataclass(frozen=True, slots=True)
class Published:
    """A number that somebody published about this workload. `point` is one of its points, or empty."""

    source: str
    gpu: str
    point: str
    what: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class KernelWorkload:
    """workloads/<engine>/<name>.py."""

    engine: Engine
    name: str
    why: str
    devices: tuple[Device, ...]
    # Path in the repository.
    file: str
    points: tuple[str, ...]
    # "cold", "warm" and, where the file has a host function, "host".
    states: tuple[str, ...]
    primary: Metric
    secondary: tuple[Metric, ...]
    # The kernels of a peer file and what each is; empty for a workload.
    variants: Mapping[str, str]
    published: tuple[Published, ...]
    # Replays of the graph that count, for each point and cache state in each run.
    replays: int
    warmup_runs: int
    start_timeout_s: float
    run_timeout_s: float
    # Public issues that this workload reproduces.
    links: tuple[str, ...]
    # sha256 of the file's content and of what decides how it is timed.
    digest: str

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (self.primary, *self.secondary)


def metric_of(state: str) -> Metric:
    """The metric over all points of one cache state, or of the host function."""
    if state != HOST_KEY:
        CacheState(state)
    return Metric(summary_key(state), "µs, geometric mean over the points", Direction.LOWER)
