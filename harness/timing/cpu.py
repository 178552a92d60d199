"""A CPU as the device: calls are executed and timed by the wall clock. For tests, and to try a workload without a GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from .device import Call, Program, Span
from .tensors import TorchTensors

__all__ = ["CpuDevice"]

# Last-level caches of servers reach hundreds of MB; a time by the wall clock on a CPU is no result, so this is no limit either.
_CACHE_BYTES = 32 * 2**20


class CpuDevice(TorchTensors):
    """harness.timing.device.Device for a CPU, through torch."""

    name = "cpu"
    mode = "wall"
    l2_bytes = _CACHE_BYTES
    peak_bytes: float | None = None
    peak_flops: float | None = None
    launch_us = 0.0

    def __init__(self) -> None:
        import torch  # noqa: F401, PLC0415 -- fails here rather than in the first call

        super().__init__("cpu")
        self.memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    @staticmethod
    def record(calls: Sequence[Call], keep: bool) -> Program:
        outputs = [call() for call in calls]
        return Program(tuple(calls), outputs if keep else outputs[-1:])

    @staticmethod
    def replay(program: Program) -> Span:
        start = time.perf_counter()
        outputs = [call() for call in program.calls]
        end = time.perf_counter()
        program.outputs[:] = outputs[-len(program.outputs) :]
        return Span((end - start) * 1e6, 0.0)

    @staticmethod
    def spans(program: Program) -> None:
        """CUPTI is about GPUs."""

    def synchronize(self) -> None:
        """A CPU call has ended when it returns."""

    @staticmethod
    def persisting_change() -> int | None:
        return None

    @staticmethod
    def used_bytes() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 -- read often
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def release(self) -> None:
        """Memory goes back by itself."""
