"""FlashInfer's batch decode over a paged cache, with tensor cores, planned outside the timed calls."""

from __future__ import annotations

import copy
from typing import Any

WHY = "The decode attention that vLLM and SGLang call most on Hopper; the yardstick for every other decode kernel."
LINKS = ("https://github.com/flashinfer-ai/flashinfer",)
PUBLISHED = ()
TOLERANCE = {"bfloat16": 0.01}

_GQA = (
    *((32, 8, 1, 1024), (32, 8, 1, 8192), (32, 8, 1, 32768), (32, 8, 1, 131072), (32, 8, 4, 8192), (32, 8, 16, 2048)),
    *((32, 8, 16, 8192), (32, 8, 64, 1024), (32, 8, 64, 4096), (32, 8, 128, 2048), (32, 8, 256, 512)),
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
WORKSPACE = 128 * 2**20

# The plan depends on lengths alone, which are the same in every input set of a point; a wrapper holds 8 MB of pinned memory.
_planned: dict[str, Any] = {}


def make(point: dict[str, Any], device: str, seed: int) -> dict[str, Any]:
    """Inputs with pages [pages, page, heads, D], and a wrapper that is planned for their lengths."""
    import torch  # noqa: PLC0415
    from upkernel.paged_decode.inputs import Case, make_inputs  # noqa: PLC0415

    heads_q, heads_kv = point["heads"]
    batch, context = point["batch"], point["context"]
    kv_dtype = torch.float8_e4m3fn if point["kv"] == "fp8" else torch.bfloat16
    x = make_inputs(
        Case((context,) * batch, heads_q, heads_kv, HEAD_DIM, PAGE, kv_dtype=kv_dtype), seed, device, poison=False, spare=0
    )
    indices = x.table[:, : -(-context // PAGE)].reshape(-1).contiguous()
    if point["name"] not in _planned:
        _planned.clear()
        _planned[point["name"]] = _plan(point, device, kv_dtype, indices)
    wrapper = copy.copy(_planned[point["name"]])
    wrapper._paged_kv_indices_buf = indices  # noqa: SLF001 -- the one thing of a plan that is this set's own
    return {"inputs": {"q": x.q, "k": x.k, "v": x.v, "indices": indices}, "fresh": ("q",), "x": x, "wrapper": wrapper}


def _plan(point: dict[str, Any], device: str, kv_dtype: Any, indices: Any) -> Any:
    import torch  # noqa: PLC0415
    from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper  # noqa: PLC0415

    batch, pages = point["batch"], -(-point["context"] // PAGE)
    workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device=device)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    wrapper.plan(
        torch.arange(batch + 1, dtype=torch.int32) * pages,
        indices,
        torch.full((batch,), (point["context"] - 1) % PAGE + 1, dtype=torch.int32),
        *point["heads"],
        HEAD_DIM,
        PAGE,
        q_data_type=torch.bfloat16,
        kv_data_type=kv_dtype,
    )
    return wrapper


def call(case: dict[str, Any]) -> Any:
    x = case["x"]
    return case["wrapper"].run(x.q, (x.k, x.v), out=x.out)


def reference(case: dict[str, Any]) -> Any:
    from upkernel.paged_decode.reference import paged_decode_reference  # noqa: PLC0415

    return paged_decode_reference(*case["x"].args())[0]


def bytes_and_flops(point: dict[str, Any]) -> tuple[int, int]:
    """K and V once, q and the output once; two products of 2 * D each for a query head and a token."""
    heads_q, heads_kv = point["heads"]
    tokens, element = point["batch"] * point["context"], 1 if point["kv"] == "fp8" else 2
    moved = 2 * tokens * heads_kv * HEAD_DIM * element + 2 * point["batch"] * heads_q * HEAD_DIM * 2
    return moved, 4 * tokens * heads_q * HEAD_DIM
