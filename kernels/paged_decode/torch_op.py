"""``torch.ops.upkernel.paged_decode``: the public operator, with a fake implementation for torch.compile.

Two overloads: the plain one allocates and returns ``(out, lse)``; ``.out`` writes into ``out=`` and, if given, ``lse=``.
Both launch one kernel on the current stream and read nothing back, so they may be captured in a CUDA graph; lengths,
tables, scales and queries may change between replays, shapes and strides may not.

The operators declare no mutation of ``workspace``: every launch leaves it as it found it as far as anyone can tell.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

from .arguments import Arguments, NotCoveredError, check, check_lengths
from .backends import CUDA_COLUMNS, Backend, build_of, choose
from .workspace import cuda_bytes, default_workspace, half, make_workspace, triton_bytes

__all__ = ["paged_decode", "workspace_for"]

INPUTS = (
    "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor seq_lens, *, Tensor? indptr=None, "
    "Tensor? k_scale=None, Tensor? v_scale=None, float k_scale_value=1.0, float v_scale_value=1.0, Tensor? sinks=None, "
    "float? sm_scale=None, int q_len=1, int window=0, float soft_cap=0.0, bool lse_base2=False, Tensor? workspace=None"
)
Pair = tuple[torch.Tensor, torch.Tensor]
library = torch.library.Library("upkernel", "FRAGMENT")
library.define(f"paged_decode({INPUTS}, bool return_lse=False) -> (Tensor, Tensor)")
library.define(f"paged_decode.out({INPUTS}, Tensor(a!) out, Tensor(b!)? lse=None) -> ()")


def _serve(a: Arguments) -> None:
    check(a)
    if a.q.device.type == "cpu" or os.environ.get("UPKERNEL_CHECK") == "1":
        check_lengths(a)
    if a.batch == 0:
        return
    on_gpu = a.q.device.type == "cuda"
    with torch.cuda.device(a.q.device) if on_gpu else contextlib.nullcontext():
        serve = _cuda if choose(a) is Backend.CUDA else _triton
        serve(a)


def _cuda(a: Arguments) -> None:
    from .cuda_kernel import cuda_kernel  # noqa: PLC0415  needs apache-tvm-ffi

    kernel = cuda_kernel(build_of(a), a.q.device)
    workspace = a.workspace if a.workspace is not None else default_workspace(kernel.scratch_bytes, a.q.device)
    kernel(
        *(a.q, a.k_cache, a.v_cache, a.block_table, a.seq_lens, a.out),
        indptr=a.indptr,
        lse=a.lse,
        sm_scale=a.scale,
        k_scale=a.k_scale if a.k_scale is not None else a.k_scale_value,
        v_scale=a.v_scale if a.v_scale is not None else a.v_scale_value,
        sinks=a.sinks,
        window=a.window,
        soft_cap=a.soft_cap,
        lse_base2=a.lse_base2,
        q_len=a.q_len,
        scratch=half(workspace, Backend.CUDA, kernel.scratch_bytes),
    )


def _triton(a: Arguments) -> None:
    from . import triton_launch  # noqa: PLC0415  a machine may have torch without triton

    if a.q.device.type == "cpu" and not triton_launch.interpreted():
        raise NotCoveredError(
            f"q is on {a.q.device}: the kernels run on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1)"
        )
    need = triton_launch.scratch_bytes(a)
    workspace = a.workspace if a.workspace is not None else default_workspace(need, a.q.device)
    triton_launch.launch(a, half(workspace, Backend.TRITON, need))


def _plain(
    q: torch.Tensor, *inputs: torch.Tensor, return_lse: bool = False, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _outputs(q, return_lse)
    _serve(Arguments(q, *inputs, out, lse if return_lse else None, **options))
    return out, lse


def _fake(q: torch.Tensor, *_: torch.Tensor, return_lse: bool = False, **__: Any) -> Pair:
    return _outputs(q, return_lse)


def _outputs(q: torch.Tensor, return_lse: bool) -> Pair:
    """``out`` contiguous like q, and lse ``[tokens, heads_q]``, which has no element where it was not asked for."""
    lse = q.new_empty(q.shape[:2] if return_lse else (0,), dtype=torch.float32)
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), lse


def _out(q: torch.Tensor, *inputs: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None = None, **options: Any) -> None:
    _serve(Arguments(q, *inputs, out, lse, **options))


def _fake_out(*_: torch.Tensor, **__: Any) -> None:
    return None


# CPU tensors work in Triton's interpreter and are an error elsewhere; HIP devices call themselves CUDA in torch.
for _key in ("CUDA", "CPU"):
    library.impl("paged_decode", _plain, _key)
    library.impl("paged_decode.out", _out, _key)
torch.library.register_fake("upkernel::paged_decode", _fake, lib=library)
torch.library.register_fake("upkernel::paged_decode.out", _fake_out, lib=library)


def paged_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    k_scale: torch.Tensor | float = 1.0,
    v_scale: torch.Tensor | float = 1.0,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    return_lse: bool = False,
    **options: Any,
) -> torch.Tensor | Pair:
    """Attention of the newest ``q_len`` tokens of every request over its tokens in a paged KV cache; causal.

    q: bf16 or fp16 ``[batch * q_len, heads_q, D]``, the tokens of a request one after the other; D 64, 128 or 256.
    k_cache, v_cache: ``[pages, page_size, heads_kv, D]`` in this order of dimensions with any strides (a cache in HND order
    is transposed by the caller, which moves nothing); q's dtype, float8_e4m3fn or float8_e5m2; heads_q is 1 to 16 times
    heads_kv; page_size is a power of two.
    block_table: int32 page numbers, ``[batch, pages]``; or one flat list, with ``indptr`` int32 ``[batch + 1]``: request b's
    pages begin at ``indptr[b]``.
    seq_lens: int32 ``[batch]``, tokens in the cache, the newest included; 0 is allowed and gives zeros and lse -inf.
    k_scale, v_scale: stored * scale is the value; a number, or float32 on the GPU with 1 or heads_kv values.
    out: like q. lse: float32 ``[batch * q_len, heads_q]``; ``return_lse`` returns it as well.
    options: ``sinks`` float32 ``[heads_q]``, extra logits with no value behind them; ``sm_scale``, default D ** -0.5;
    ``q_len`` 1 to 8; ``window``, a query sees that many newest tokens (0: all); ``soft_cap``, logits become
    cap * tanh(logits / cap) (0: none); ``lse_base2``, else natural; ``workspace`` (workspace_for).

    Raises ValueError naming the argument and both values; NotCoveredError (a ValueError) where no kernel serves the call.
    """
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        options[name if isinstance(scale, torch.Tensor) else f"{name}_value"] = scale
    inputs = (q, k_cache, v_cache, block_table, seq_lens)
    if out is None and lse is None:
        out, lse = torch.ops.upkernel.paged_decode(*inputs, **options, return_lse=return_lse)
        return (out, lse) if return_lse else out
    out = torch.empty_like(q) if out is None else out
    if lse is None and return_lse:
        lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    torch.ops.upkernel.paged_decode(*inputs, **options, out=out, lse=lse)
    return (out, lse) if return_lse else out


def workspace_for(
    device: torch.device | str,
    *,
    batch: int,
    heads_q: int,
    heads_kv: int,
    head_dim: int,
    q_len: int = 1,
) -> torch.Tensor:
    """A workspace for calls of up to this batch and q_len on one stream, whichever kernel serves them."""
    device = torch.device(device)
    columns = heads_q // heads_kv * q_len
    need = triton_bytes(device, batch, heads_kv, columns, head_dim)
    if device.type == "cuda" and columns <= CUDA_COLUMNS:
        need = max(need, cuda_bytes(device, columns, head_dim))
    return make_workspace(need, device)
