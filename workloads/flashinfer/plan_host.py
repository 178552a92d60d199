"""Host time of FlashInfer's plan(), and GPU time of the run() that follows it."""

from __future__ import annotations

from typing import Any

WHY = "plan() runs on the host before every step; Python's max() over a tensor makes it slow in proportion to the batch."
LINKS = ("https://github.com/flashinfer-ai/flashinfer/pull/5043",)
PUBLISHED = tuple(
    {
        "source": "https://github.com/flashinfer-ai/flashinfer/pull/5043",
        "gpu": "NVIDIA GeForce RTX 4090",
        "point": f"{kind}-b{batch}",
        "what": f"host time of plan() {when} the change",
        "value": value,
        "unit": "us",
    }
    for kind, batch, before, after in (
        *(("prefill", 64, 281.0, 90.0), ("prefill", 256, 850.0, 99.0), ("prefill", 1024, 3118.0, 130.0)),
        *(("decode", 64, 173.0, 76.0), ("decode", 256, 461.0, 87.0), ("decode", 1024, 1605.0, 112.0)),
    )
    for when, value in (("before", before), ("after", after))
)
PRIMARY = "host"
TOLERANCE = {"bfloat16": 0.01}
POINTS = tuple(
    {"name": f"{kind}-b{batch}", "kind": kind, "batch": batch, "context": context}
    for kind in ("decode", "prefill")
    for batch, context in ((64, 1024), (256, 256), (1024, 64))
)

HEADS = (32, 8)
HEAD_DIM = 128
PAGE = 16
WORKSPACE = 128 * 2**20


def make(point: dict[str, Any], device: str, seed: int) -> dict[str, Any]:
    """Inputs, a planned wrapper, and the arguments of plan(): lengths on the host, as vLLM gives them."""
    import torch  # noqa: PLC0415
    from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper  # noqa: PLC0415
    from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper  # noqa: PLC0415
    from upkernel.paged_decode.inputs import Case, make_inputs  # noqa: PLC0415

    batch, context = point["batch"], point["context"]
    x = make_inputs(Case((context,) * batch, *HEADS, HEAD_DIM, PAGE), seed, device, poison=False, spare=0)
    pages = -(-context // PAGE)
    starts = torch.arange(batch + 1, dtype=torch.int32)
    paged = (
        starts * pages,
        x.table[:, :pages].reshape(-1).contiguous(),
        torch.full((batch,), (context - 1) % PAGE + 1, dtype=torch.int32),
    )
    types = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    arguments = (*paged, *HEADS, HEAD_DIM, PAGE)
    if point["kind"] == "prefill":
        arguments = (starts, *arguments)
        types["causal"] = True

    def planned() -> Any:
        workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device=device)
        if point["kind"] == "decode":
            wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        else:
            wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
        wrapper.plan(*arguments, **types)
        return wrapper

    return {
        "inputs": {"q": x.q, "k": x.k, "v": x.v},
        "fresh": ("q",),
        "x": x,
        "wrapper": planned(),
        # plan() replaces the buffers that the recorded run() reads, so what is planned again and again is another wrapper.
        "planner": planned(),
        "plan": (arguments, types),
    }


def host(case: dict[str, Any]) -> Any:
    arguments, types = case["plan"]
    return case["planner"].plan(*arguments, **types)


def call(case: dict[str, Any]) -> Any:
    x = case["x"]
    return case["wrapper"].run(x.q, (x.k, x.v), out=x.out)


def reference(case: dict[str, Any]) -> Any:
    from upkernel.paged_decode.reference import paged_decode_reference  # noqa: PLC0415

    return paged_decode_reference(*case["x"].args())[0]


def bytes_and_flops(point: dict[str, Any]) -> tuple[int, int]:
    """K and V once, q and the output once; two products of 2 * D each for a query head and a token."""
    heads_q, heads_kv = HEADS
    tokens = point["batch"] * point["context"]
    return 4 * tokens * heads_kv * HEAD_DIM + 4 * point["batch"] * heads_q * HEAD_DIM, 4 * tokens * heads_q * HEAD_DIM
