"""Launching the Triton kernel: tile choice, scratch, and the host-known part of the schedule."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton

from .arguments import Arguments, NotCoveredError
from .triton_kernel import paged_decode_kernel
from .workspace import COUNTER_BYTES, pieces_for, triton_layout

__all__ = ["Tile", "choose_tile", "constants", "interpreted", "launch", "scratch_bytes"]

# Square root of the 66 pieces that a row of one request with 8 KV heads has on an H200.
FAN = 8
LOG2E = 1.4426950408889634


@dataclass(frozen=True)
class Tile:
    """How the kernel is cut: tokens a tile, warps, pipeline stages, programs wanted for each processor of the GPU."""

    tokens: int
    warps: int
    stages: int
    waves: int  # at most workspace.MAX_WAVES
    min_tiles: int = 1


def choose_tile(kv_bytes: int, head_dim: int, rows: int) -> Tile:
    """Measured on an H200 at head_dim 128 and 16 rows; elsewhere kept within registers and shared memory.

    kv_bytes: of one cache element; rows: of the query operand (a power of two of at least 16).
    """
    if rows > 32 or head_dim > 128:
        return Tile(32, 8 if rows * head_dim > 8192 else 4, 2, 4)
    # Two warps: with 16 rows, four would have a quarter of the smallest matrix operand each, and convert the same fp8 tile.
    return Tile(64, 2 if rows == 16 else 4, 2 if kv_bytes == 2 else 3, 4)


@functools.cache
def _native_fp8(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the compiler has the hardware's conversion to f16: e4m3 and e5m2 on NVIDIA GPUs from sm_89."""
    if device.type == "cpu" or torch.version.hip is not None:
        return False
    return dtype.itemsize == 1 and torch.cuda.get_device_capability(device) >= (8, 9)


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def scratch_bytes(a: Arguments, tile: Tile | None = None) -> int:
    """Bytes of scratch for a call: counters that must be all ones before the first launch, then partial results."""
    tile = tile or _tile_of(a)
    pieces = pieces_for(a.q.device, a.heads_kv, tile.waves)
    return triton_layout(a.batch, a.heads_kv, a.group * a.q_len, a.head_dim, pieces)[1]


def _tile_of(a: Arguments) -> Tile:
    return choose_tile(a.k_cache.element_size(), a.head_dim, max(16, _power(a.group * a.q_len)))


def constants(  # noqa: PLR0917  one line for each compile-time argument of the kernel
    group: int,
    q_len: int,
    head_dim: int,
    page: int,
    batch: int,
    tile: Tile,
    q_dtype: torch.dtype,
    kv_dtype: torch.dtype,
    native_fp8: bool,
    **flags: int | bool,
) -> dict[str, int | bool]:
    """The kernel's compile-time arguments."""
    columns = _power(group * q_len)
    fp8 = {torch.float8_e4m3fn: 1, torch.float8_e5m2: 2}.get(kv_dtype, 0)
    found = {
        "GROUP": group,
        "Q_LEN": q_len,
        "D": head_dim,
        "PAGE": page,
        "TOK": tile.tokens,
        "ROWS": max(16, columns),
        "COLS": columns,
        "BATCH": _power(batch),
        "MIN_TILES": tile.min_tiles,
        "FLAT": False,
        "WINDOW": False,
        "CAP": False,
        "SINKS": False,
        "LSE": 0,
        "SCALES": 0,
        "FP8": 3 if fp8 and native_fp8 else fp8,
        "RESCALE": q_dtype == torch.bfloat16 and fp8 > 0,
        # 32 registers a thread of 128 for the parts being merged.
        "UNROLL": max(1, min(FAN, 4096 // (columns * head_dim))),
        "FAN": FAN,
        "WIDE": False,
    }
    if unknown := set(flags) - set(found):
        raise TypeError(f"unknown constants {sorted(unknown)}")
    return found | flags


def launch(a: Arguments, scratch: torch.Tensor, tile: Tile | None = None) -> None:
    """Runs the kernel on checked arguments. ``scratch``: uint8, `scratch_bytes`, all ones before its first launch."""
    if a.batch == 0:
        return
    tile = tile or _tile_of(a)
    native = _native_fp8(a.q.device, a.k_cache.dtype)
    k, v = a.k_cache, a.v_cache
    if k.element_size() == 1 and not native:
        k, v = k.view(torch.uint8), v.view(torch.uint8)
    pieces = pieces_for(a.q.device, a.heads_kv, tile.waves)
    o, need = triton_layout(a.batch, a.heads_kv, a.group * a.q_len, a.head_dim, pieces)
    programs = (pieces + a.batch) * a.heads_kv
    if 8 * programs > COUNTER_BYTES:
        raise NotCoveredError(
            f"seq_lens has {a.batch} requests and k_cache {a.heads_kv} heads: {programs} programs, "
            f"the Triton kernel has counters for {COUNTER_BYTES // 8}"
        )
    flags = {
        "FLAT": a.indptr is not None,
        "WINDOW": a.window > 0,
        "CAP": a.soft_cap > 0,
        "SINKS": a.sinks is not None,
        "LSE": 0 if a.lse is None else 2 if a.lse_base2 else 1,
        "SCALES": (a.k_scale is not None) + 2 * (a.v_scale is not None),
        "WIDE": a.q.device.type == "cpu",
    }
    some = a.seq_lens  # stands in for pointers that the flags say are not read
    scale = a.k_scale if a.k_scale is not None else a.v_scale
    paged_decode_kernel[a.heads_kv, pieces + a.batch](
        *(a.q, k, v, a.block_table),
        a.indptr if a.indptr is not None else some,
        *(a.seq_lens, a.out),
        a.lse if a.lse is not None else some,
        a.k_scale if a.k_scale is not None else some,
        a.v_scale if a.v_scale is not None else some,
        a.sinks if a.sinks is not None else some,
        scratch[: COUNTER_BYTES // 2].view(torch.int32),
        scratch[COUNTER_BYTES // 2 : COUNTER_BYTES].view(torch.int32),
        scratch[COUNTER_BYTES:o].view(torch.float32),
        scratch[o:need].view(torch.float32),
        a.scale if a.soft_cap > 0 else a.scale * LOG2E,
        *(float(a.k_scale_value), float(a.v_scale_value)),
        int(scale is not None and scale.numel() > 1),
        float(a.soft_cap),
        *(a.batch, pieces, a.window),
        *(a.q.stride(0), a.q.stride(1), a.out.stride(0), a.out.stride(1)),
        a.block_table.stride(0) if a.indptr is None else 0,
        *(k.stride(0), k.stride(1), k.stride(2), v.stride(0), v.stride(1), v.stride(2)),
        **constants(a.group, a.q_len, a.head_dim, a.page, a.batch, tile, a.q.dtype, a.k_cache.dtype, native, **flags),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def interpreted() -> bool:
    """Whether Triton runs this kernel in its interpreter: TRITON_INTERPRET=1 was set when the kernel was defined."""
    return not isinstance(paged_decode_kernel, triton.JITFunction)
