"""vLLM's log-probabilities of the sampled tokens and their ranks, as the V2 model runner computes them."""

from __future__ import annotations

from typing import Any

WHY = "One program a row goes through the vocabulary twice in small tiles, each waiting for a reduction: slow with few rows."
LINKS = ("https://github.com/vllm-project/vllm/issues/55577",)
PUBLISHED = (
    {
        "source": "https://github.com/vllm-project/vllm/issues/55577",
        "gpu": "RTX 4090",
        "point": "fp32-r1024-v128256",
        "what": "one chunk of 1024 prompt tokens, top 32, as the issue states it",
        "value": 2.1e6,
        "unit": "us",
    },
)
TOLERANCE = {"float32": 1e-5}

_SHAPES = tuple((rows, vocabulary) for vocabulary in (128256, 151936) for rows in (1, 8, 64, 1024))
POINTS = tuple(
    {"name": f"{dtype}-r{rows}-v{vocabulary}", "dtype": dtype, "rows": rows, "vocabulary": vocabulary}
    for dtype, shapes in (("fp32", (*_SHAPES, (1, 32000), (64, 32000))), ("bf16", ((1, 128256), (64, 128256), (1024, 128256))))
    for rows, vocabulary in shapes
)


def make(point: dict[str, Any], device: str, seed: int) -> dict[str, Any]:
    """Logits [rows, vocabulary] of the size that a model's have, and a sampled token for each row."""
    import torch  # noqa: PLC0415

    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    rows, vocabulary = point["rows"], point["vocabulary"]
    logits = torch.randn(rows, vocabulary, device=device, generator=generator).mul_(4.0)
    if point["dtype"] == "bf16":
        logits = logits.bfloat16()
    sampled = torch.randint(vocabulary, (rows,), device=device, generator=generator)
    return {"inputs": {"logits": logits, "sampled": sampled}, "fresh": ("logits",)}


def call(case: dict[str, Any]) -> Any:
    from vllm.v1.worker.gpu.sample.logprob import compute_topk_logprobs  # noqa: PLC0415

    # Without further tokens: torch.topk would take most of the time, and no series here changes it.
    found = compute_topk_logprobs(case["inputs"]["logits"], 0, case["inputs"]["sampled"])
    return found.logprobs, found.selected_token_ranks


def reference(case: dict[str, Any]) -> Any:
    logits, sampled = case["inputs"]["logits"], case["inputs"]["sampled"].unsqueeze(1)
    chosen = logits.gather(1, sampled)
    return logits.double().log_softmax(1).gather(1, sampled), (logits >= chosen).sum(1)


def bytes_and_flops(point: dict[str, Any]) -> tuple[int, int]:
    """The logits read once; an exponential, an addition and two comparisons each."""
    elements = point["rows"] * point["vocabulary"]
    return elements * (2 if point["dtype"] == "bf16" else 4), 4 * elements
