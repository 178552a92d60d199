"""vLLM's Triton attention backend on decode batches, through its own metadata builder and implementation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

WHY = "The Triton backend serves where FlashAttention does not; its split over the context ignores context length and SM count."
LINKS = (
    "https://github.com/vllm-project/vllm/issues/48076",
    "https://github.com/vllm-project/vllm/pull/47520",
)
PUBLISHED = (
    {
        "source": "https://github.com/vllm-project/vllm/issues/48076",
        "gpu": "not stated",
        "point": "",
        "what": "inter-token latency at batch 12 and more against batches below the cliff",
        "value": 2.0,
        "unit": "x",
    },
)
# Two correct kernels differ by this much in bf16: the output is rounded to 8 bits.
TOLERANCE = {"bfloat16": 0.01}

# (query heads, KV heads, batch, context); batches 16 and 17 stand on both sides of the threshold of 128 / KV heads.
_GQA = (
    *((32, 8, 1, 1024), (32, 8, 1, 8192), (32, 8, 1, 32768), (32, 8, 1, 131072), (32, 8, 4, 8192), (32, 8, 16, 2048)),
    *((32, 8, 16, 8192), (32, 8, 17, 8192), (32, 8, 64, 1024), (32, 8, 64, 4096), (32, 8, 128, 2048), (32, 8, 256, 512)),
)
_OTHER = ((64, 8, 1, 8192), (64, 8, 1, 32768), (64, 8, 16, 8192), (64, 8, 64, 4096))
_MHA = ((32, 32, 1, 8192), (32, 32, 1, 32768), (32, 32, 16, 8192))
POINTS = tuple(
    {"name": f"{kv}-{hq}/{hkv}-b{batch}-{context}", "kv": kv, "heads": [hq, hkv], "batch": batch, "context": context}
    for kv, shapes in (("bf16", (*_GQA, *_OTHER, *_MHA)), ("fp8", _GQA))
    for hq, hkv, batch, context in shapes
)

HEAD_DIM = 128
PAGE = 16
# vLLM's default list of captured batch sizes, as far as the builder looks at it.
CAPTURE_SIZES = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
LONGEST = 131072


def make(point: dict[str, Any], device: str, seed: int) -> dict[str, Any]:
    """Inputs in vLLM's cache layout, and the backend's metadata for them."""
    import torch  # noqa: PLC0415
    from upkernel.paged_decode.inputs import Case, make_inputs  # noqa: PLC0415
    from vllm.v1.attention.backend import CommonAttentionMetadata  # noqa: PLC0415
    from vllm.v1.attention.backends.triton_attn import (  # noqa: PLC0415
        TritonAttentionImpl,
        TritonAttentionMetadataBuilder,
    )

    heads_q, heads_kv = point["heads"]
    batch, context = point["batch"], point["context"]
    kv_dtype = torch.float8_e4m3fn if point["kv"] == "fp8" else torch.bfloat16
    x = make_inputs(
        Case((context,) * batch, heads_q, heads_kv, HEAD_DIM, PAGE, kv_dtype=kv_dtype, layout="vllm"),
        seed,
        device,
        poison=False,
        spare=0,
    )
    starts = torch.arange(batch + 1, dtype=torch.int32)
    common = CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=x.lens,
        num_reqs=batch,
        num_actual_tokens=batch,
        max_query_len=1,
        max_seq_len=context,
        block_table_tensor=x.table,
        slot_mapping=torch.zeros(batch, dtype=torch.int64, device=device),
    )
    builder = TritonAttentionMetadataBuilder(SimpleNamespace(block_size=PAGE), ["layer"], _config(point), torch.device(device))
    one = torch.ones((), device=device)
    cache = x.k._base  # noqa: SLF001 -- [pages, 2, page, heads, dim], which K and V are views of
    return {
        "inputs": {"q": x.q, "kv_cache": cache, "table": x.table, "lens": x.lens},
        "fresh": ("q",),
        "x": x,
        "metadata": builder.build(0, common),
        "layer": SimpleNamespace(_k_scale=one, _v_scale=one, _q_scale=one),
        "impl": TritonAttentionImpl(
            heads_q, HEAD_DIM, HEAD_DIM**-0.5, heads_kv, None, None, "fp8" if point["kv"] == "fp8" else "auto"
        ),
    }


def _config(point: dict[str, Any]) -> Any:
    """What the builder reads of vLLM's configuration."""
    from vllm.config import CUDAGraphMode  # noqa: PLC0415

    heads_q, heads_kv = point["heads"]
    return SimpleNamespace(
        model_config=SimpleNamespace(
            get_num_attention_heads=lambda _parallel: heads_q,
            get_num_kv_heads=lambda _parallel: heads_kv,
            get_head_size=lambda: HEAD_DIM,
            max_model_len=LONGEST,
        ),
        parallel_config=SimpleNamespace(),
        scheduler_config=SimpleNamespace(max_num_seqs=256, max_num_batched_tokens=8192),
        compilation_config=SimpleNamespace(
            cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE, cudagraph_capture_sizes=CAPTURE_SIZES
        ),
        speculative_config=None,
    )


def call(case: dict[str, Any]) -> Any:
    """One layer's attention; keys and values of the step are in the cache already."""
    x = case["x"]
    case["impl"].forward(case["layer"], x.q, None, None, case["inputs"]["kv_cache"], case["metadata"], x.out)
    return x.out


def reference(case: dict[str, Any]) -> Any:
    from upkernel.paged_decode.reference import paged_decode_reference  # noqa: PLC0415

    return paged_decode_reference(*case["x"].args())[0]


def bytes_and_flops(point: dict[str, Any]) -> tuple[int, int]:
    """K and V once, q and the output once; two products of 2 * D each for a query head and a token."""
    heads_q, heads_kv = point["heads"]
    tokens, element = point["batch"] * point["context"], 1 if point["kv"] == "fp8" else 2
    moved = 2 * tokens * heads_kv * HEAD_DIM * element + 2 * point["batch"] * heads_q * HEAD_DIM * 2
    return moved, 4 * tokens * heads_q * HEAD_DIM
