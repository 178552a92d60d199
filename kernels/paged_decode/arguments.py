"""What one call of paged decode attention is given, and the checks that every backend relies on.

Everything that the host knows is checked on every call; lengths and tables live on the device, and reading them would
stall it, so `check_lengths` does that only where it is asked for (``UPKERNEL_CHECK=1``) or costs nothing (CPU tensors).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch

__all__ = ["Arguments", "NotCoveredError", "check", "check_lengths"]

HEAD_DIMS = (64, 128, 256)
MAX_GROUP = 16
MAX_Q_LEN = 8
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
PAIRS = {
    torch.bfloat16: (torch.bfloat16, *FP8),
    torch.float16: (torch.float16, *FP8),
}


class NotCoveredError(ValueError):
    """The call is well-formed, but no kernel here serves it; the message says why, so that an engine can fall back."""


@dataclass(frozen=True, eq=False)
class Arguments:
    """One call. Shapes, dtypes and meaning are those of ``torch.ops.upkernel.paged_decode`` (torch_op.py)."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor | None = None
    indptr: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    k_scale_value: float = 1.0
    v_scale_value: float = 1.0
    sinks: torch.Tensor | None = None
    sm_scale: float | None = None
    q_len: int = 1
    window: int = 0
    soft_cap: float = 0.0
    lse_base2: bool = False
    workspace: torch.Tensor | None = None

    @property
    def batch(self) -> int:
        return self.seq_lens.shape[0]

    @property
    def heads_q(self) -> int:
        return self.q.shape[1]

    @property
    def heads_kv(self) -> int:
        return self.k_cache.shape[2]

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads_q // self.heads_kv

    @property
    def page(self) -> int:
        return self.k_cache.shape[1]

    @property
    def head_dim(self) -> int:
        return self.q.shape[2]

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.head_dim) if self.sm_scale is None else self.sm_scale


def _shape(x: torch.Tensor) -> str:
    return "[" + ", ".join(str(n) for n in x.shape) + "]"


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(d).removeprefix("torch.") for d in dtypes)


def check(a: Arguments) -> None:
    """Raises ValueError naming the argument and both values, or NotCoveredError where a well-formed call has no kernel."""
    _check_dtypes(a)
    _check_shapes(a)
    _check_table(a)
    _check_optional(a)
    _check_outputs(a)
    _check_device(a)


def _check_dtypes(a: Arguments) -> None:
    if a.q.dtype not in PAIRS:
        raise NotCoveredError(f"q is {_names((a.q.dtype,))}, covered are {_names(tuple(PAIRS))}")
    if a.k_cache.dtype != a.v_cache.dtype:
        raise ValueError(f"k_cache is {_names((a.k_cache.dtype,))} and v_cache is {_names((a.v_cache.dtype,))}")
    if a.k_cache.dtype not in PAIRS[a.q.dtype]:
        hint = "; view a cache of raw fp8 bytes as its float8 type" if a.k_cache.dtype == torch.uint8 else ""
        raise NotCoveredError(
            f"k_cache is {_names((a.k_cache.dtype,))} with q {_names((a.q.dtype,))}; "
            f"covered with this q are {_names(PAIRS[a.q.dtype])}{hint}"
        )
    for name, x in (("block_table", a.block_table), ("seq_lens", a.seq_lens), ("indptr", a.indptr)):
        if x is not None and x.dtype != torch.int32:
            raise ValueError(f"{name} is {_names((x.dtype,))}, it must be int32")


def _check_shapes(a: Arguments) -> None:
    _check_dimensions(a)
    if a.page < 1 or a.page & (a.page - 1):
        raise NotCoveredError(f"k_cache has pages of {a.page} tokens, which is not a power of two")
    if not 1 <= a.q_len <= MAX_Q_LEN:
        raise NotCoveredError(f"q_len is {a.q_len}, covered are 1 to {MAX_Q_LEN}")
    if a.q.shape[0] != a.batch * a.q_len:
        raise ValueError(f"q has {a.q.shape[0]} tokens, but seq_lens has {a.batch} requests of q_len {a.q_len}")
    for name, x in (("q", a.q), ("k_cache", a.k_cache), ("v_cache", a.v_cache)):
        if x.stride(-1) != 1:
            raise ValueError(f"{name}'s last dimension has stride {x.stride(-1)}, it must be contiguous (stride 1)")


def _check_dimensions(a: Arguments) -> None:
    for name, x, dims in (("q", a.q, 3), ("k_cache", a.k_cache, 4), ("v_cache", a.v_cache, 4), ("seq_lens", a.seq_lens, 1)):
        if x.dim() != dims:
            raise ValueError(f"{name} has {x.dim()} dimensions {_shape(x)}, it must have {dims}")
    if a.k_cache.shape != a.v_cache.shape:
        raise ValueError(f"v_cache is {_shape(a.v_cache)}, k_cache is {_shape(a.k_cache)}: they must be equal")
    if a.q.shape[2] != a.k_cache.shape[3]:
        raise ValueError(f"head_dim is {a.q.shape[2]} in q and {a.k_cache.shape[3]} in k_cache")
    if a.head_dim not in HEAD_DIMS:
        raise NotCoveredError(f"head_dim is {a.head_dim}, covered are {', '.join(map(str, HEAD_DIMS))}")
    if a.heads_kv < 1 or a.heads_q % a.heads_kv:
        raise ValueError(f"q has {a.heads_q} heads, which is not a multiple of the {a.heads_kv} heads of k_cache")
    if a.group > MAX_GROUP:
        raise NotCoveredError(
            f"q has {a.heads_q} heads over {a.heads_kv} of k_cache: {a.group} for each, covered are 1 to {MAX_GROUP}"
        )


def _check_table(a: Arguments) -> None:
    if a.indptr is None:
        if a.block_table.dim() != 2 or a.block_table.shape[0] != a.batch:
            raise ValueError(f"block_table is {_shape(a.block_table)}, it must be [{a.batch}, pages] (seq_lens is [{a.batch}])")
        if a.block_table.shape[1] > 1 and a.block_table.stride(1) != 1:
            raise ValueError(f"block_table's rows have stride {a.block_table.stride(1)}, they must be contiguous (stride 1)")
        return
    if a.block_table.dim() != 1 or not a.block_table.is_contiguous():
        raise ValueError(f"block_table is {_shape(a.block_table)}; with indptr it must be one contiguous list of pages")
    if a.indptr.dim() != 1 or a.indptr.shape[0] != a.batch + 1 or not a.indptr.is_contiguous():
        raise ValueError(f"indptr is {_shape(a.indptr)}, it must be contiguous [{a.batch + 1}] (seq_lens is [{a.batch}])")


def _check_optional(a: Arguments) -> None:
    for name, x in (("k_scale", a.k_scale), ("v_scale", a.v_scale)):
        if x is None:
            continue
        if x.device != a.q.device:
            raise ValueError(f"{name} is on {x.device}, q is on {a.q.device}; give a number, or a tensor on {a.q.device}")
        if x.dtype != torch.float32 or x.numel() not in {1, a.heads_kv} or not x.is_contiguous():
            raise ValueError(
                f"{name} is {_names((x.dtype,))} {_shape(x)}, it must be contiguous float32 with 1 or {a.heads_kv} "
                f"values (k_cache has {a.heads_kv} heads)"
            )
    if a.k_scale is not None and a.v_scale is not None and a.k_scale.numel() != a.v_scale.numel():
        raise ValueError(f"k_scale has {a.k_scale.numel()} values and v_scale {a.v_scale.numel()}: they must be equal")
    if a.sinks is not None and (a.sinks.dtype != torch.float32 or a.sinks.numel() != a.heads_q or not a.sinks.is_contiguous()):
        raise ValueError(
            f"sinks is {_names((a.sinks.dtype,))} {_shape(a.sinks)}, it must be contiguous float32 [{a.heads_q}] (heads of q)"
        )
    if a.window < 0:
        raise ValueError(f"window is {a.window}, it must be 0 (no window) or the number of tokens")
    if a.soft_cap < 0:
        raise ValueError(f"soft_cap is {a.soft_cap}, it must be 0 (no cap) or positive")
    if not math.isfinite(a.scale):
        raise ValueError(f"sm_scale is {a.scale}, it must be finite")


def _check_outputs(a: Arguments) -> None:
    if a.out.shape != a.q.shape or a.out.dtype != a.q.dtype:
        raise ValueError(
            f"out is {_names((a.out.dtype,))} {_shape(a.out)}, it must be {_names((a.q.dtype,))} {_shape(a.q)}, as q is"
        )
    if a.out.stride(-1) != 1:
        raise ValueError(f"out's last dimension has stride {a.out.stride(-1)}, it must be contiguous (stride 1)")
    want = (a.q.shape[0], a.heads_q)
    if a.lse is not None and (tuple(a.lse.shape) != want or a.lse.dtype != torch.float32 or not a.lse.is_contiguous()):
        raise ValueError(f"lse is {_names((a.lse.dtype,))} {_shape(a.lse)}, it must be contiguous float32 {list(want)}")


def _check_device(a: Arguments) -> None:
    rest = {
        "k_cache": a.k_cache,
        "v_cache": a.v_cache,
        "block_table": a.block_table,
        "seq_lens": a.seq_lens,
        "indptr": a.indptr,
        "sinks": a.sinks,
        "out": a.out,
        "lse": a.lse,
        "workspace": a.workspace,
    }
    for name, x in rest.items():
        if x is not None and x.device != a.q.device:
            raise ValueError(f"{name} is on {x.device}, q is on {a.q.device}: they must be on one device")
    if a.seq_lens.numel() > 1 and a.seq_lens.stride(0) != 1:
        raise ValueError(f"seq_lens has stride {a.seq_lens.stride(0)}, it must be contiguous (stride 1)")
    if a.q.device.type == "cuda" and torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability(a.q.device)
        if major < 8:
            raise NotCoveredError(f"the GPU {a.q.device} has compute capability {major}.{minor}, the kernels need 8.0 or newer")


def check_lengths(a: Arguments) -> None:
    """Reads lengths and table to the host (a synchronisation) and compares them with each other and the cache.

    Raises ValueError for a negative length, a table too narrow for a length, a page number outside the cache.
    """
    pages = a.k_cache.shape[0]
    starts = a.indptr.tolist() if a.indptr is not None else None
    # Rows of a larger table (SGLang's) begin anywhere, and then only the list's end bounds them.
    ordered = starts is not None and all(x <= y for x, y in pairwise(starts))
    for b, length in enumerate(a.seq_lens.tolist()):
        if length < 0:
            raise ValueError(f"seq_lens[{b}] is {length}, it must be 0 or more")
        need = -(-length // a.page)
        row = a.block_table[b] if starts is None else a.block_table[starts[b] : starts[b + 1] if ordered else None]
        if row.numel() < need:
            raise ValueError(
                f"block_table has {row.numel()} pages for request {b}, but seq_lens[{b}] is {length}, "
                f"which needs {need} pages of {a.page} tokens"
            )
        lo = max(0, length - (a.q_len - 1) - a.window) // a.page if a.window else 0
        used = row[lo:need]
        if used.numel() and (int(used.min()) < 0 or int(used.max()) >= pages):
            bad = int(used.min()) if int(used.min()) < 0 else int(used.max())
            raise ValueError(f"block_table names page {bad} for request {b}, but k_cache has {pages} pages")
