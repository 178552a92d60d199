"""The table that every reader of profiles ends in, whatever recorded it. All times are whole nanoseconds of one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from harness.vocabulary import Phase

__all__ = ["Category", "DeviceTotals", "HotRow", "Profile", "Recorder"]

SCHEMA = 1


class Recorder(StrEnum):
    """What recorded a profile: Nsight Systems, or the profiler inside PyTorch."""

    NSYS = "nsys"
    KINETO = "kineto"


class Category(StrEnum):
    """What a kernel is for, read from its name; OTHER when no rule knows it."""

    ATTENTION = "attention"
    KV_CACHE = "kv cache"
    GEMM = "gemm"
    MOE = "moe"
    NORM = "norm"
    ROPE = "rope"
    ACTIVATION = "activation"
    QUANTISATION = "quantisation"
    SAMPLING = "sampling"
    COMM = "comm"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    ELEMENTWISE = "elementwise"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class HotRow:
    """All calls of one kernel, by normalised name, in one phase on one device."""

    device: int
    name: str
    category: Category
    phase: Phase
    calls: int
    total_ns: int
    least_ns: int
    most_ns: int

    @property
    def mean_us(self) -> float:
        return self.total_ns / self.calls / 1000


@dataclass(frozen=True, slots=True)
class DeviceTotals:
    """busy_ns is the length of the union of all intervals; summed_ns counts time twice where kernels overlap."""

    device: int
    kernels: int
    copies: int
    # From the first start to the last end.
    span_ns: int
    busy_ns: int
    summed_ns: int

    @property
    def overlap_ns(self) -> int:
        """At most 0: what has to be added to the rows' sum to get the busy time."""
        return self.busy_ns - self.summed_ns


@dataclass(frozen=True, slots=True)
class Profile:
    """One recorded run. For each device: sum of its rows' total_ns + overlap_ns == busy_ns, to the nanosecond."""

    label: str
    recorder: Recorder
    # "NVIDIA Nsight Systems 2026.2.1.210, schema 3.25.0"
    tool: str
    devices: tuple[DeviceTotals, ...]
    # Longest total first.
    rows: tuple[HotRow, ...]
    # Steps of the engine that were seen, by phase; empty where nothing marked them.
    steps: Mapping[Phase, int]
    # Time of kernels that were launched after a step's range and before the next (sampling), counted with the step before.
    between_steps_ns: int
    # What a reader of the table must know: no step ranges, launches cut off, diagnostics of the recorder.
    notes: tuple[str, ...]

    @property
    def busy_ns(self) -> int:
        return sum(one.busy_ns for one in self.devices)

    def share(self, nanoseconds: int) -> float:
        """Of the busy time of all devices; 0 to 1 for a row, below 0 for the overlap."""
        return nanoseconds / self.busy_ns if self.busy_ns else 0.0

    def phase_ns(self, phase: Phase) -> int:
        return sum(row.total_ns for row in self.rows if row.phase is phase)
