"""Scratch memory of the kernels: partial results and counters, all bits set before the first launch.

One buffer serves calls of any shape and either kernel: the CUDA kernel leaves its half all bits set, the Triton kernel
keeps its counters at a fixed place of the other half. A launch uses its workspace until it ends, and launches that overlap
(two streams) must not share one. An engine makes its own with `make_workspace` and passes it; a call without one gets a
buffer that is kept for its device and stream.
"""

from __future__ import annotations

import functools
import logging

import torch

from .backends import Backend

__all__ = [
    "COUNTER_BYTES",
    "cuda_bytes",
    "default_workspace",
    "half",
    "make_workspace",
    "pieces_for",
    "triton_bytes",
    "triton_layout",
]

log = logging.getLogger("upkernel.paged_decode")
SMALLEST = 16 << 20
# The Triton kernel's counters (rows, then programs), at a fixed place: a counter is never where another call has its parts.
COUNTER_BYTES = 2 * 4 * 65536
MAX_WAVES = 8  # programs of the Triton kernel for each processor
CUDA_WARPS = 8  # of the CUDA kernel in one SM, at most
CPU_PROCESSORS = 6  # the interpreter has none; with a few, small tests split their rows, and one has to merge in two levels
# Kept for the life of the process: a captured graph may hold the address of any of them.
_kept: dict[tuple[torch.device, int, int], torch.Tensor] = {}


def make_workspace(need: int, device: torch.device | str) -> torch.Tensor:
    """uint8 workspace for kernels that need ``need`` bytes each, as they want it before their first launch."""
    return torch.full((2 * (-(-need // 256) * 256),), 255, dtype=torch.uint8, device=device)


@functools.cache
def _processors(device: torch.device) -> int:
    if device.type == "cpu":
        return CPU_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def pieces_for(device: torch.device, heads_kv: int, waves: int) -> int:
    """Programs of the Triton kernel wanted for one KV head; its grid has `batch` more, because every row has one at least."""
    return max(1, -(-waves * _processors(device) // heads_kv))


def triton_layout(batch: int, heads_kv: int, columns: int, head_dim: int, pieces: int) -> tuple[int, int]:
    """Byte offset of the parts' O, which follow the counters and the parts' (m, l); and the total."""
    slots = (pieces + batch) * heads_kv * columns
    o = COUNTER_BYTES + -(-8 * slots // 256) * 256
    return o, o + 4 * slots * head_dim


def triton_bytes(device: torch.device, batch: int, heads_kv: int, columns: int, head_dim: int) -> int:
    """The most that the Triton kernel needs for a batch up to this one, with any tile."""
    return triton_layout(batch, heads_kv, columns, head_dim, pieces_for(device, heads_kv, MAX_WAVES))[1]


def cuda_bytes(device: torch.device, columns: int, head_dim: int) -> int:
    """The most that the CUDA kernel needs: two slots a warp, whatever the batch (csrc/params.cuh, scratch_layout)."""
    slots = 2 * _processors(device) * CUDA_WARPS * columns
    return -(-8 * slots // 256) * 256 + -(-4 * slots * head_dim // 256) * 256


def half(workspace: torch.Tensor, backend: Backend, need: int) -> torch.Tensor:
    """The part of a workspace that belongs to one kernel.

    Raises ValueError where it is no contiguous uint8 or holds less than ``need``.
    """
    if workspace.dtype != torch.uint8 or workspace.dim() != 1 or not workspace.is_contiguous():
        raise ValueError(f"workspace is {workspace.dtype} {list(workspace.shape)}, it must be contiguous uint8 [bytes]")
    middle = workspace.numel() // 512 * 256
    if middle < need:
        raise ValueError(f"workspace has {workspace.numel()} bytes, this call needs {2 * (-(-need // 256) * 256)}")
    return workspace[:middle] if backend is Backend.CUDA else workspace[middle : 2 * middle]


def default_workspace(need: int, device: torch.device) -> torch.Tensor:
    """The buffer for calls without a workspace on the current stream.

    Inside the capture of a graph whose stream has none yet, the buffer becomes part of the graph, which fills it at every
    replay (microseconds): a call before the capture on the same stream, or a workspace of the caller's, avoids that.
    """
    rounded = max(SMALLEST // 2, 1 << (need - 1).bit_length())
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    found = _kept.get((device, stream, rounded))
    if found is None:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            log.warning("paged decode is captured on a stream that has no workspace yet: every replay will fill one")
            return make_workspace(need, device)
        found = _kept[device, stream, rounded] = make_workspace(rounded, device)
    return found
