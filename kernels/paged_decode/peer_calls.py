"""One prepared call for each kernel of peers.py: plans, metadata and scratch are made here, outside what is timed.

Every function takes the case and its tensors (pages [pages, page, heads_kv, D]) and returns a function that launches and
returns the output. The engines' own settings are used; where they stand is said at each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .arguments import Arguments
from .inputs import Case, Inputs

__all__ = ["PREPARE"]

Run = Callable[[], torch.Tensor]
WORKSPACE = 128 * 2**20
SCALE_EXPONENT = -0.5


def _scale(case: Case) -> float:
    return case.head_dim**SCALE_EXPONENT


def _cuda(case: Case, x: Inputs) -> Run:
    from .bench import build_for  # noqa: PLC0415
    from .cuda_kernel import cuda_kernel  # noqa: PLC0415

    kernel = cuda_kernel(build_for(case), x.q.device)
    return lambda: kernel(*x.args(), x.out)


def _triton(_: Case, x: Inputs) -> Run:
    from .triton_launch import launch, scratch_bytes  # noqa: PLC0415
    from .workspace import default_workspace  # noqa: PLC0415

    a = Arguments(*x.args(), x.out)
    scratch = default_workspace(scratch_bytes(a), x.q.device)

    def run() -> torch.Tensor:
        launch(a, scratch)
        return x.out

    return run


def _pages(case: Case, x: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    counts = [-(-n // case.page) for n in case.lens]
    indptr = torch.tensor([0, *counts]).cumsum(0).int()
    indices = torch.cat([x.table[b, :n] for b, n in enumerate(counts)])
    return indptr, indices, torch.tensor([(n - 1) % case.page + 1 for n in case.lens], dtype=torch.int32)


def _flashinfer(case: Case, x: Inputs, tensor_cores: bool) -> Run:
    from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper  # noqa: PLC0415

    wrapper = BatchDecodeWithPagedKVCacheWrapper(_flashinfer_workspace(x.q.device), "NHD", use_tensor_cores=tensor_cores)
    wrapper.plan(
        *_pages(case, x),
        *(case.heads_q, case.heads_kv, case.head_dim, case.page),
        q_data_type=case.q_dtype,
        kv_data_type=case.kv_dtype,
    )
    return lambda: wrapper.run(x.q, (x.k, x.v), out=x.out)


@functools.cache
def _flashinfer_workspace(device: torch.device) -> torch.Tensor:
    # Calls follow each other on one stream, so that all plans can share it.
    return torch.zeros(WORKSPACE, dtype=torch.uint8, device=device)


def _xqa(case: Case, x: Inputs) -> Run:
    from flashinfer.decode import xqa_batch_decode_with_kv_cache  # noqa: PLC0415

    longest, workspace = max(case.lens), _flashinfer_workspace(x.q.device)
    table = x.table[:, : -(-longest // case.page)].contiguous()
    return lambda: xqa_batch_decode_with_kv_cache(
        *(x.q, (x.k, x.v), workspace, table, x.lens, longest), bmm1_scale=_scale(case), kv_layout="NHD", out=x.out
    )


def _fa3(case: Case, x: Inputs) -> Run:
    """vllm/v1/attention/backends/flash_attn.py: scheduler metadata, at most 32 splits under full CUDA graphs."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata  # noqa: PLC0415

    batch, longest = len(case.lens), max(case.lens)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=x.q.device)
    fp8 = case.kv_dtype.itemsize == 1
    metadata = get_scheduler_metadata(
        batch_size=batch,
        max_seqlen_q=1,
        max_seqlen_k=longest,
        num_heads_q=case.heads_q,
        num_heads_kv=case.heads_kv,
        headdim=case.head_dim,
        cache_seqlens=x.lens,
        qkv_dtype=case.kv_dtype,
        cu_seqlens_q=starts,
        page_size=case.page,
        causal=True,
        window_size=(-1, -1),
        num_splits=32,
    )
    one = torch.ones((), device=x.q.device).expand(batch, case.heads_kv)

    def run() -> torch.Tensor:
        # The layer quantises q where the cache is fp8; that belongs to the price, as the engine pays it too.
        q = x.q.to(case.kv_dtype) if fp8 else x.q
        flash_attn_varlen_func(
            q=q,
            k=x.k,
            v=x.v,
            out=x.out,
            cu_seqlens_q=starts,
            max_seqlen_q=1,
            seqused_k=x.lens,
            max_seqlen_k=longest,
            softmax_scale=_scale(case),
            causal=True,
            block_table=x.table,
            scheduler_metadata=metadata,
            fa_version=3,
            q_descale=one if fp8 else None,
            k_descale=one if fp8 else None,
            v_descale=one if fp8 else None,
            num_splits=32,
        )
        return x.out

    return run


def _vllm_triton(case: Case, x: Inputs) -> Run:
    """vllm/v1/attention/backends/triton_attn.py: 16 segments up to 128 / heads_kv requests."""
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention  # noqa: PLC0415

    batch, longest, device = len(case.lens), max(case.lens), x.q.device
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device)
    threshold, segments = 128 // case.heads_kv, 16
    shape = (threshold, case.heads_q, segments)
    parts = {
        "softmax_segm_output": torch.empty((*shape, case.head_dim), device=device),
        "softmax_segm_max": torch.empty(shape, device=device),
        "softmax_segm_expsum": torch.empty(shape, device=device),
    }
    one = torch.ones((), device=device).expand(batch, case.heads_kv)
    fp8: dict[str, Any] = {}
    if case.kv_dtype.itemsize == 1:
        from vllm.v1.kv_cache_interface import KVQuantMode  # noqa: PLC0415

        fp8["kv_quant_mode"] = KVQuantMode.FP8_PER_TENSOR

    def run() -> torch.Tensor:
        unified_attention(
            q=x.q,
            k=x.k,
            v=x.v,
            out=x.out,
            cu_seqlens_q=starts,
            max_seqlen_q=1,
            seqused_k=x.lens,
            max_seqlen_k=longest,
            softmax_scale=_scale(case),
            causal=True,
            window_size=(-1, -1),
            block_table=x.table,
            softcap=0,
            q_descale=None,
            k_descale=one,
            v_descale=one,
            seq_threshold_3D=threshold,
            num_par_softmax_segments=segments,
            **parts,
            **fp8,
        )
        return x.out

    return run


def _sglang_triton(case: Case, x: Inputs) -> Run:
    """sglang/srt/layers/attention/triton_backend.py: at most 8 splits, chosen on the device before each step."""
    from sglang.srt.layers.attention.triton_ops.decode_attention import decode_attention_fwd  # noqa: PLC0415
    from sglang.srt.layers.attention.triton_ops.metadata import get_num_kv_splits_triton  # noqa: PLC0415

    batch, device, splits = len(case.lens), x.q.device, 8
    indptr = torch.tensor([0, *case.lens], device=device).cumsum(0).int()
    slots = [
        x.table[b, torch.arange(n, device=device) // case.page].long() * case.page + torch.arange(n, device=device) % case.page
        for b, n in enumerate(case.lens)
    ]
    indices = torch.cat(slots)
    chosen = torch.empty(batch, dtype=torch.int32, device=device)
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    get_num_kv_splits_triton[(1,)](
        *(chosen, x.lens, batch, 1, case.heads_q, case.heads_kv, splits, sms),
        MAX_NUM_SEQ=max(256, 1 << (batch - 1).bit_length()),
    )
    logits = torch.empty(batch, case.heads_q, splits, case.head_dim, device=device)
    lse = torch.empty(batch, case.heads_q, splits, device=device)
    keys, values = (t.view(-1, case.heads_kv, case.head_dim) for t in (x.k, x.v))

    def run() -> torch.Tensor:
        decode_attention_fwd(*(x.q, keys, values, x.out, indptr, indices, logits, lse, chosen, splits, _scale(case), 1.0, 1.0))
        return x.out

    return run


def _pure_read(case: Case, x: Inputs) -> Run:
    from .timing import best_read, read_call  # noqa: PLC0415

    buffer = torch.randint(-(2**31), 2**31 - 1, (case.kv_bytes // 4,), dtype=torch.int32, device=x.q.device)
    call = read_call(buffer, **best_read(case.kv_bytes))

    def run() -> torch.Tensor:
        call()
        return buffer

    return run


PREPARE: dict[str, Callable[[Case, Inputs], Run]] = {
    "cuda": _cuda,
    "triton": _triton,
    "flashinfer-tc": lambda case, x: _flashinfer(case, x, True),
    "flashinfer-cc": lambda case, x: _flashinfer(case, x, False),
    "flashinfer-xqa": _xqa,
    "fa3": _fa3,
    "vllm-triton": _vllm_triton,
    "sglang-triton": _sglang_triton,
    "pure-read": _pure_read,
}
