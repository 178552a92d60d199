"""A CUDA GPU as the device: calls are captured in a graph, and replays of it are timed with events."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Sequence
from typing import Any

from .cupti import KernelSpan, kernel_spans
from .device import Call, Program, Span
from .graph_nodes import kernel_names
from .tensors import TorchTensors

__all__ = ["CudaDevice"]

# Bytes/s from data sheets, and FLOP/s of the fastest dense type (FP8 or BF16 without it): no kernel can beat them.
PEAKS = {
    "H200": (4.8e12, 1979e12),
    "GH200": (4.9e12, 1979e12),
    "H100 NVL": (3.94e12, 1671e12),
    "H100 PCIe": (2.04e12, 1513e12),
    "H100": (3.35e12, 1979e12),
    "A100": (2.04e12, 312e12),
    "L40S": (0.864e12, 733e12),
    "B200": (8.0e12, 4500e12),
}
# The host must be ahead of the device when the start event is reached, or the time to launch the graph is in the span. About
# 150 µs at 2 GHz; launching a graph takes 5 to 60 µs of the host.
_BACKLOG_CYCLES = 300_000
_LAUNCHES = 100


class CudaDevice(TorchTensors):
    """harness.timing.device.Device for the current CUDA device. Raises RuntimeError where there is none."""

    mode = "graph"

    def __init__(self) -> None:
        import torch  # noqa: PLC0415

        super().__init__("cuda")
        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA device in this environment")
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.name = str(properties.name)
        self.l2_bytes = int(properties.L2_cache_size)
        self.memory_bytes = int(properties.total_memory)
        # The longest name that fits: "H100 NVL" before "H100".
        known = max((one for one in PEAKS if one in self.name), key=len, default=None)
        self.peak_bytes: float | None = PEAKS[known][0] if known else None
        self.peak_flops: float | None = PEAKS[known][1] if known else None
        self._stream = torch.cuda.Stream()
        self._runtime = _runtime()
        self._persisting = self._set_aside()
        self.launch_us = self._launch()

    def record(self, calls: Sequence[Call], keep: bool) -> Program:
        import torch  # noqa: PLC0415

        with torch.cuda.stream(self._stream):
            for call in calls:
                call()
            self._stream.synchronize()
            graph, kept = _new_graph()
            outputs: list[Any] = []
            # Python's collector may free a tensor of another graph at any moment, which is an error while one is captured.
            gc.disable()
            try:
                with torch.cuda.graph(graph, stream=self._stream):
                    for call in calls:
                        outputs.append(call())
                        if not keep:
                            del outputs[:-1]
            finally:
                gc.enable()
            kernels = None
            if kept:
                kernels = kernel_names(graph.raw_cuda_graph())
                graph.instantiate()
        return Program(tuple(calls), outputs, graph, kernels)

    def replay(self, program: Program) -> Span:
        import torch  # noqa: PLC0415

        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if self._runtime is not None:
            # What a kernel marked as persisting in the last replay would be warm in this one.
            self._runtime.cudaCtxResetPersistingL2Cache()
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(_BACKLOG_CYCLES)  # noqa: SLF001 -- the one call of torch that only occupies the device
            start.record(self._stream)
            program.graph.replay()
            end.record(self._stream)
        end.synchronize()
        ended = time.perf_counter()
        torch.cuda.synchronize()
        outside = time.perf_counter() - ended
        return Span(start.elapsed_time(end) * 1e3, outside * 1e6)

    def spans(self, program: Program) -> tuple[KernelSpan, ...] | None:
        import torch  # noqa: PLC0415

        def run() -> None:
            with torch.cuda.stream(self._stream):
                program.graph.replay()
            torch.cuda.synchronize()

        return kernel_spans(run)

    @staticmethod
    def synchronize() -> None:
        import torch  # noqa: PLC0415

        torch.cuda.synchronize()

    def persisting_change(self) -> int | None:
        now = self._set_aside()
        return None if now is None or self._persisting is None else now - self._persisting

    def _set_aside(self) -> int | None:
        if self._runtime is None:
            return None
        value = ctypes.c_size_t()
        # 6 is cudaLimitPersistingL2CacheSize (driver_types.h).
        error = self._runtime.cudaDeviceGetLimit(ctypes.byref(value), 6)
        return int(value.value) if error == 0 else None

    @staticmethod
    def used_bytes() -> int:
        import torch  # noqa: PLC0415

        return int(torch.cuda.memory_allocated())

    @staticmethod
    def release() -> None:
        import torch  # noqa: PLC0415

        gc.collect()
        torch.cuda.empty_cache()

    def _launch(self) -> float:
        """Time of one of many kernels that fill one element, in a graph."""
        import torch  # noqa: PLC0415

        one = torch.zeros(1, device="cuda")
        program = self.record([one.zero_] * _LAUNCHES, keep=False)
        return min(self.replay(program).us for _ in range(5)) / _LAUNCHES


def _new_graph() -> tuple[Any, bool]:
    """A graph, and whether its nodes can be looked at before it is made ready (torch 2.8 and later)."""
    import torch  # noqa: PLC0415

    try:
        return torch.cuda.CUDAGraph(keep_graph=True), True
    except TypeError:
        return torch.cuda.CUDAGraph(), False


def _runtime() -> Any:
    """The CUDA runtime that torch has loaded, or None when no loaded library is one."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as file:  # noqa: PTH123 -- not a real file
        names = {line.split()[-1] for line in file if "libcudart" in line}
    for name in sorted(names):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
