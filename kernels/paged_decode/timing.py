"""Timing by CUDA-graph replay, and the read-only kernel that serves as the ceiling."""

from __future__ import annotations

import ctypes
import functools
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from .cuda_build import CSRC, BuildError, find_nvcc

__all__ = ["ROTATE_BYTES", "Timing", "best_read", "pure_read", "read_call", "time_graph"]

ROTATE_BYTES = 300_000_000  # five times the L2 of an H200


@dataclass(frozen=True)
class Timing:
    """Time per call in microseconds over ``n`` replays of a graph of ``calls`` calls."""

    median_us: float
    min_us: float
    max_us: float
    n: int
    calls: int
    samples_us: tuple[float, ...]

    def as_dict(self) -> dict:
        """Plain data for JSON."""
        return {**asdict(self), "samples_us": [round(x, 4) for x in self.samples_us]}


def time_graph(
    calls: Sequence[Callable[[], None]],
    replays: int = 12,
    before_each: Callable[[], None] | None = None,
    warm_ms: float = 30.0,
) -> Timing:
    """Captures all calls, in order, in one graph and times its replays with events.

    Untimed replays come first, two at least and for ``warm_ms``: an H200 that was idle for a moment runs its first few
    milliseconds up to 15 % slower. ``before_each`` runs before every replay, outside the timed window (it poisons the
    outputs). The sequence is what makes the measurement cold: each call must use an input set of its own.
    """
    stream = torch.cuda.Stream()
    # Inputs, scratch and memory that the allocator gives out again may still be in use on the caller's stream.
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
        begun, count = time.monotonic(), 0
        while count < 2 or time.monotonic() - begun < warm_ms / 1e3:
            graph.replay()
            stream.synchronize()
            count += 1
        samples = []
        for _ in range(replays):
            if before_each is not None:
                before_each()
            stream.synchronize()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(stream)
            graph.replay()
            end.record(stream)
            stream.synchronize()
            samples.append(start.elapsed_time(end) * 1e3 / len(calls))
    return Timing(statistics.median(samples), min(samples), max(samples), replays, len(calls), tuple(samples))


@functools.cache
def _read_library() -> ctypes.CDLL:
    nvcc = find_nvcc()
    if nvcc is None:
        raise BuildError("nvcc was not found")
    folder = tempfile.mkdtemp(prefix="upkernel-read-")
    out = Path(folder) / "read.so"
    cmd = [nvcc, "-O3", "-arch=sm_90", "-Xcompiler", "-fPIC", "-shared", "-o", str(out), str(CSRC / "pure_read.cu")]
    subprocess.run(cmd, check=True)
    lib = ctypes.CDLL(str(out))
    lib.upk_pure_read.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p] + [ctypes.c_int] * 3 + [ctypes.c_void_p]
    return lib


READ_SETTINGS = tuple(
    {"blocks_per_sm": per_sm, "threads": threads, "unroll": unroll}
    for per_sm, threads in ((1, 512), (1, 1024), (2, 512), (2, 1024), (4, 256), (4, 512), (8, 256))
    for unroll in (4, 8, 16)
    if unroll < 16 or threads * per_sm <= 1024
)


def read_call(x: torch.Tensor, blocks_per_sm: int, threads: int, unroll: int) -> Callable[[], None]:
    """A launch that loads every byte of a contiguous tensor once (a multiple of 16 bytes) and adds."""
    lib = _read_library()
    blocks = blocks_per_sm * torch.cuda.get_device_properties(x.device).multi_processor_count
    sink = torch.zeros(1, dtype=torch.int32, device=x.device)

    def call() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        err = lib.upk_pure_read(x.data_ptr(), x.nbytes, sink.data_ptr(), blocks, threads, unroll, stream)
        if err:
            raise RuntimeError(f"pure_read failed with CUDA error {err}")

    return call


def pure_read(size: int, sets: int, replays: int = 12) -> dict:
    """Time to load ``size`` bytes once, the best of eighteen launch settings, rotating over ``sets`` buffers.

    The buffers hold random bits: reading zeros can be faster. Returns the Timing of the best setting, and the setting.
    """
    count = size // 16 * 4
    buffers = [torch.randint(-(2**31), 2**31 - 1, (count,), dtype=torch.int32, device="cuda") for _ in range(sets)]
    best: dict = {}
    for setting in READ_SETTINGS:
        calls = [read_call(x, **setting) for x in buffers]
        timing = time_graph(calls, max(5, replays // 2), warm_ms=5.0 if best else 50.0)
        if not best or timing.median_us < best["median_us"]:
            best = {**timing.as_dict(), **setting}
    return best


@functools.cache
def best_read(size: int) -> dict[str, int]:
    """The launch setting that reads ``size`` bytes fastest on this GPU."""
    found = pure_read(size, max(2, -(-ROTATE_BYTES // size)), replays=5)
    return {name: found[name] for name in READ_SETTINGS[0]}
