"""What the measuring needs of a device: record calls, replay them, and look at tensors. Real ones are in cuda.py and cpu.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .cupti import KernelSpan

__all__ = ["Device", "Difference", "Program", "Span", "open_device"]

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Span:
    """One replay: microseconds from its start to its end, and what the device went on working after that end."""

    us: float
    outside_us: float


@dataclass(slots=True)
class Program:
    """Recorded calls. `outputs[i]` is what call i returned when it was recorded (or, without a graph, when it last ran)."""

    calls: tuple[Call, ...]
    outputs: list[Any]
    # A CUDA graph; None where a replay executes the calls.
    graph: Any = None
    # Names of the kernels of one replay, in no order; None where the driver does not tell.
    kernels: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """||out - reference|| / ||reference|| over the tensor, and the largest over its rows; NaN where one is NaN."""

    overall: float
    worst_row: float


class Device(Protocol):
    """One device of one process. All sizes are bytes, all times microseconds."""

    name: str
    # A value of harness.vocabulary.TimingMode.
    mode: str
    l2_bytes: int
    memory_bytes: int
    # Limits of the hardware per second; None where the model is not known (no floor is checked then, and the result says so).
    peak_bytes: float | None
    peak_flops: float | None
    # What a kernel that does nothing takes.
    launch_us: float

    def record(self, calls: Sequence[Call], keep: bool) -> Program:
        """Run each call once, then record all in order. `keep` holds every output; else only the last call's."""
        ...

    def replay(self, program: Program) -> Span:
        """Run it once, alone on the device, and wait until the device is idle."""
        ...

    def spans(self, program: Program) -> tuple[KernelSpan, ...] | None:
        """What one more replay executed, as CUPTI records it; None where CUPTI is not there."""
        ...

    def synchronize(self) -> None: ...

    def is_plain(self, value: Any) -> bool:
        """Whether it is an ordinary tensor of this device: a lazy one would do its work when somebody looks."""
        ...

    def dtype(self, tensor: Any) -> str: ...

    def poison(self, tensors: Sequence[Any]) -> None:
        """Overwrite with NaN (integers: their largest value)."""
        ...

    def difference(self, output: Any, reference: Any) -> Difference: ...

    def unwritten(self, tensors: Sequence[Any]) -> int:
        """How many of them hold NaN."""
        ...

    def fingerprints(self, tensors: Sequence[Any]) -> tuple[int, ...]:
        """A number for each that changes when any of its bits change or move."""
        ...

    def shift(self, tensor: Any, by: int) -> None:
        """Move all values by some places, in place: other values of the same kind. Shifting back restores it exactly."""
        ...

    def persisting_change(self) -> int | None:
        """By how many bytes the part of the L2 that is set aside for persisting data was changed since the device was opened.

        None where that cannot be read. (An H200 sets 11.25 MiB aside by default; replay() resets what lies in it.)
        """
        ...

    def used_bytes(self) -> int:
        """What this process holds of the device's memory."""
        ...

    def release(self) -> None:
        """Give unused memory back to the device."""
        ...


def open_device(kind: str) -> Device:
    """The device of this process: "cuda" or "cpu". Raises ImportError without torch, RuntimeError without a GPU."""
    if kind == "cuda":
        from .cuda import CudaDevice  # noqa: PLC0415 -- needs torch

        return CudaDevice()
    from .cpu import CpuDevice  # noqa: PLC0415

    return CpuDevice()
