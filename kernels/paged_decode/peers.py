"""Our kernels beside those that the engines decode with today, on the same values: nox -s bench_kernels -- paged_decode."""

from __future__ import annotations

from typing import Any

WHY = "Decode reads the whole KV cache once a token: who reads it at what share of the memory's speed, on the same inputs."
LINKS = ("https://github.com/flashinfer-ai/flashinfer", "https://github.com/vllm-project/flash-attention")
PUBLISHED = ()
# Rounding of a bf16 output; FA3 and SGLang also quantise Q or P to fp8 where the cache is fp8, hence their own bounds.
TOLERANCE = {"bfloat16": 0.005}

_GQA = (
    *((32, 8, 1, 1024), (32, 8, 1, 8192), (32, 8, 1, 32768), (32, 8, 1, 131072), (32, 8, 4, 8192), (32, 8, 16, 2048)),
    *((32, 8, 16, 8192), (32, 8, 64, 1024), (32, 8, 64, 4096), (32, 8, 128, 2048), (32, 8, 256, 512)),
    *((64, 8, 1, 8192), (64, 8, 1, 32768), (64, 8, 16, 8192), (64, 8, 64, 4096)),
)
_MHA = ((32, 32, 1, 8192), (32, 32, 1, 32768), (32, 32, 16, 8192), (32, 32, 64, 4096))
_UNIFORM = tuple(
    {"name": f"{kv}-{hq}/{hkv}-b{b}-{n}", "kv": kv, "heads": [hq, hkv], "batch": b, "context": n, "page": 16, "ragged": False}
    for kv in ("bf16", "fp8")
    for hq, hkv, b, n in (*_GQA, *_MHA)
)
_RAGGED = tuple(
    {"name": f"{kv}-32/8-b{b}-ragged{n}", "kv": kv, "heads": [32, 8], "batch": b, "context": n, "page": 16, "ragged": True}
    for kv in ("bf16", "fp8")
    for b, n in ((16, 8192), (64, 4096))
)
_PAGES = tuple(
    {
        "name": f"{kv}-32/8-b16-8192-page{p}",
        "kv": kv,
        "heads": [32, 8],
        "batch": 16,
        "context": 8192,
        "page": p,
        "ragged": False,
    }
    for kv in ("bf16", "fp8")
    for p in (1, 64)
)
POINTS = (*_UNIFORM, *_RAGGED, *_PAGES)

VARIANTS = {
    "cuda": {"role": "ours", "what": "upkernel CUDA kernel", "needs": ("tvm_ffi",)},
    "triton": {"role": "ours", "what": "upkernel Triton kernel", "needs": ("triton",)},
    "flashinfer-tc": {"role": "peer", "what": "FlashInfer decode wrapper, tensor cores on", "needs": ("flashinfer",)},
    "flashinfer-cc": {"role": "peer", "what": "FlashInfer decode wrapper, tensor cores off", "needs": ("flashinfer",)},
    "flashinfer-xqa": {"role": "peer", "what": "FlashInfer XQA", "needs": ("flashinfer",)},
    "fa3": {"role": "peer", "what": "FlashAttention-3 as vLLM calls it", "needs": ("vllm",), "tolerance": 0.05},
    "vllm-triton": {"role": "peer", "what": "vLLM unified_attention (Triton)", "needs": ("vllm",)},
    "sglang-triton": {"role": "peer", "what": "SGLang decode_attention_fwd", "needs": ("sglang",), "tolerance": 0.05},
    "pure-read": {"role": "ceiling", "what": "loads the same number of bytes and adds", "checked": False},
}
HEAD_DIM = 128


def covers(point: dict[str, Any], variant: str) -> str:
    """Why a variant does not serve a point; empty if it does."""
    if point["page"] < 16 and variant in {"fa3", "flashinfer-xqa", "vllm-triton"}:
        return f"page of {point['page']} token: 16 is its smallest"
    if variant == "flashinfer-cc" and point["heads"][0] // point["heads"][1] > 8:
        return "more than 8 query heads a KV head need tensor cores"
    return ""


def _lens(point: dict[str, Any]) -> tuple[int, ...]:
    from upkernel.paged_decode.inputs import ragged  # noqa: PLC0415

    batch, context = point["batch"], point["context"]
    return ragged(batch, context) if point["ragged"] else (context,) * batch


def make(point: dict[str, Any], device: str, seed: int, variant: str) -> dict[str, Any]:
    """The same values for every variant, and the variant's call prepared for them (plans, metadata, scratch)."""
    import torch  # noqa: PLC0415
    from upkernel.paged_decode import peer_calls  # noqa: PLC0415
    from upkernel.paged_decode.inputs import Case, make_inputs  # noqa: PLC0415

    kv = torch.float8_e4m3fn if point["kv"] == "fp8" else torch.bfloat16
    case = Case(_lens(point), *point["heads"], HEAD_DIM, point["page"], kv_dtype=kv)
    x = make_inputs(case, seed, device, poison=False, spare=0)
    inputs = {"q": x.q, "k": x.k, "v": x.v, "table": x.table, "lens": x.lens}
    return {"inputs": inputs, "fresh": ("q",), "x": x, "run": peer_calls.PREPARE[variant](case, x), "out": x.out}


def call(case: dict[str, Any]) -> Any:
    return case["run"]()


def reference(case: dict[str, Any]) -> Any:
    from upkernel.paged_decode.reference import paged_decode_reference  # noqa: PLC0415

    i = case["inputs"]
    return paged_decode_reference(i["q"], i["k"], i["v"], i["table"], i["lens"])[0]


def bytes_and_flops(point: dict[str, Any]) -> tuple[int, int]:
    """K and V once, q and the output once; two products of 2 * D each for a query head and a token."""
    heads_q, heads_kv = point["heads"]
    tokens, element = point["batch"] * point["context"], 1 if point["kv"] == "fp8" else 2
    moved = 2 * tokens * heads_kv * HEAD_DIM * element + 2 * point["batch"] * heads_q * HEAD_DIM * 2
    return moved, 4 * tokens * heads_q * HEAD_DIM
