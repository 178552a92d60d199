"""SGLang's Triton attention backend on decode batches, through its own metadata and forward_decode()."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

WHY = "At most 8 splits of the context whatever its length and the number of SMs: long contexts in small batches are slow."
LINKS = (
    "https://github.com/sgl-project/sglang/issues/2271",
    "https://github.com/sgl-project/sglang/pull/21775",
    "https://github.com/sgl-project/sglang/pull/27786",
)
PUBLISHED = tuple(
    {
        "source": "https://github.com/sgl-project/sglang/pull/21775",
        "gpu": "H100",
        "point": f"bf16-32/8-b1-{context}",
        "what": f"Qwen3-8B decode with {backend}",
        "value": value,
        "unit": "tokens/s",
    }
    for context, values in ((4096, (118.0, 139.0)), (16384, (74.0, 127.0)), (32768, (48.0, 113.0)))
    for backend, value in zip(("the Triton backend", "FlashInfer"), values, strict=True)
)
TOLERANCE = {"bfloat16": 0.01}

_GQA = (
    *((32, 8, 1, 256), (32, 8, 1, 1024), (32, 8, 1, 4096), (32, 8, 1, 8192), (32, 8, 1, 16384), (32, 8, 1, 32768)),
    *((32, 8, 1, 131072), (32, 8, 4, 8192), (32, 8, 16, 2048), (32, 8, 16, 4096), (32, 8, 16, 8192), (32, 8, 64, 1024)),
    *((32, 8, 64, 4096), (32, 8, 128, 2048), (32, 8, 256, 512)),
)
_OTHER = ((64, 8, 1, 32768), (64, 8, 16, 8192), (64, 8, 64, 4096))
_MHA = ((32, 32, 1, 8192), (32, 32, 1, 32768), (32, 32, 16, 8192))
_FP8 = (
    *((32, 8, 1, 1024), (32, 8, 1, 8192), (32, 8, 1, 32768), (32, 8, 4, 8192), (32, 8, 16, 2048), (32, 8, 16, 8192)),
    *((32, 8, 64, 1024), (32, 8, 64, 4096), (32, 8, 256, 512)),
)
# The pin casts P and Q to FP8 where K and V are: 3.5 % error. MHA in bf16 has 0.8 %.
POINTS = tuple(
    {
        "name": f"{kv}-{hq}/{hkv}-b{batch}-{context}",
        "kv": kv,
        "heads": [hq, hkv],
        "batch": batch,
        "context": context,
        "tolerance": 0.05 if kv == "fp8" else 0.01,
    }
    for kv, shapes in (("bf16", (*_GQA, *_OTHER, *_MHA)), ("fp8", _FP8))
    for hq, hkv, batch, context in shapes
)

HEAD_DIM = 128
PAGE = 16
LONGEST = 131072
MOST_REQUESTS = 256
# triton_attention_num_kv_splits, SGLang's default.
SPLITS = 8


def make(point: dict[str, Any], device: str, seed: int) -> dict[str, Any]:
    """Inputs with tokens [slots, heads, D], a backend of SGLang's, and its metadata for them."""
    import torch  # noqa: PLC0415
    from sglang.srt.layers.attention import triton_backend  # noqa: PLC0415
    from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: PLC0415
    from upkernel.paged_decode.inputs import Case, make_inputs  # noqa: PLC0415

    heads_q, heads_kv = point["heads"]
    batch, context = point["batch"], point["context"]
    kv_dtype = torch.float8_e4m3fn if point["kv"] == "fp8" else torch.bfloat16
    x = make_inputs(
        Case((context,) * batch, heads_q, heads_kv, HEAD_DIM, PAGE, kv_dtype=kv_dtype), seed, device, poison=False, spare=0
    )
    # One process without tensor parallelism; SGLang asks for it where a server has set it up.
    triton_backend.get_parallel = lambda: SimpleNamespace(attn_tp_size=1, attn_tp_rank=0)
    triton_backend.cuda_graph_fully_disabled = lambda: False
    pages = x.table[:, : -(-context // PAGE)].long()
    slots = (pages.unsqueeze(2) * PAGE + torch.arange(PAGE, device=device)).reshape(batch, -1)[:, :context]
    backend = triton_backend.TritonAttnBackend(_runner(point, device, slots.int(), x))
    batch_info = SimpleNamespace(
        batch_size=batch,
        forward_mode=ForwardMode.DECODE,
        spec_info=None,
        seq_lens=x.lens.long(),
        seq_lens_sum=batch * context,
        seq_lens_cpu=torch.full((batch,), context, dtype=torch.int64),
        req_pool_indices=torch.arange(batch, device=device),
        out_cache_loc=None,
    )
    backend.init_forward_metadata(batch_info)
    layer = SimpleNamespace(
        tp_q_head_num=heads_q,
        qk_head_dim=HEAD_DIM,
        v_head_dim=HEAD_DIM,
        head_dim=HEAD_DIM,
        layer_id=0,
        scaling=HEAD_DIM**-0.5,
        sliding_window_size=-1,
        logit_cap=0.0,
        logit_capping_method="tanh",
        k_scale=None,
        v_scale=None,
        xai_temperature_len=-1,
    )
    return {
        "inputs": {"q": x.q, "k": x.k, "v": x.v, "lens": x.lens},
        "fresh": ("q",),
        "x": x,
        "backend": backend,
        "layer": layer,
        "batch": batch_info,
    }


def _runner(point: dict[str, Any], device: str, slots: Any, x: Any) -> Any:
    """What the backend reads of SGLang's model runner."""
    from sglang.srt.configs.model_config import AttentionArch  # noqa: PLC0415

    heads_q, heads_kv = point["heads"]
    keys, values = (cache.view(-1, heads_kv, HEAD_DIM) for cache in (x.k, x.v))
    return SimpleNamespace(
        device=device,
        gpu_id=0,
        sliding_window_size=None,
        hybrid_gdn_config=None,
        kimi_linear_config=None,
        linear_attn_model_spec=None,
        req_to_token_pool=SimpleNamespace(size=MOST_REQUESTS, req_to_token=slots),
        token_to_kv_pool=SimpleNamespace(
            get_key_buffer=lambda _layer: keys,
            get_value_buffer=lambda _layer: values,
            get_v_head_dim=lambda: HEAD_DIM,
        ),
        token_to_kv_pool_allocator=None,
        server_args=SimpleNamespace(
            speculative_num_draft_tokens=0,
            speculative_num_steps=0,
            speculative_eagle_topk=0,
            triton_attention_num_kv_splits=SPLITS,
            triton_attention_split_tile_size=None,
            enable_deterministic_inference=False,
            chunked_prefill_size=8192,
        ),
        model_config=SimpleNamespace(
            attention_arch=AttentionArch.MHA,
            num_attention_heads=heads_q,
            get_num_kv_heads=lambda _size: heads_kv,
            v_head_dim=HEAD_DIM,
            swa_v_head_dim=HEAD_DIM,
            head_dim=HEAD_DIM,
            context_len=LONGEST,
            is_encoder_decoder=False,
        ),
    )


def call(case: dict[str, Any]) -> Any:
    """One layer's attention; keys and values of the step are in the cache already."""
    heads, dim = case["layer"].tp_q_head_num, HEAD_DIM
    out = case["backend"].forward_decode(case["x"].q, None, None, case["layer"], case["batch"], save_kv_cache=False)
    return out.view(-1, heads, dim)


def reference(case: dict[str, Any]) -> Any:
    from upkernel.paged_decode.reference import paged_decode_reference  # noqa: PLC0415

    return paged_decode_reference(*case["x"].args())[0]


def bytes_and_flops(point: dict[str, Any]) -> tuple[int, int]:
    """K and V once, q and the output once; two products of 2 * D each for a query head and a token."""
    heads_q, heads_kv = point["heads"]
    tokens, element = point["batch"] * point["context"], 1 if point["kv"] == "fp8" else 2
    moved = 2 * tokens * heads_kv * HEAD_DIM * element + 2 * point["batch"] * heads_q * HEAD_DIM * 2
    return moved, 4 * tokens * heads_q * HEAD_DIM
