"""FlashInfer's softmax over a vocabulary, with and without per-row temperatures."""

from __future__ import annotations

from typing import Any

WHY = "The second phase of the split path runs one block a row, so few rows leave most of the GPU idle."
LINKS = (
    "https://github.com/flashinfer-ai/flashinfer/pull/2990",
    "https://github.com/sgl-project/sglang/pull/22178",
)
PUBLISHED = tuple(
    {
        "source": "https://github.com/sgl-project/sglang/pull/22178",
        "gpu": "not stated",
        "point": f"b{batch}-v{vocabulary}",
        "what": "flashinfer.softmax",
        "value": value,
        "unit": "us",
    }
    for batch, vocabulary, value in ((1, 32000, 11.2), (1, 65536, 14.8), (16, 65536, 16.5), (64, 65536, 32.7))
)
TOLERANCE = {"float32": 1e-5}

_SHAPES = tuple((batch, vocabulary) for vocabulary in (32000, 65536, 128256, 151936, 262144) for batch in (1, 4, 16, 64))
# 64, 128 and 129 rows stand on both sides of where every SM of an H200 has a row.
POINTS = tuple(
    {"name": f"b{batch}-v{vocabulary}", "batch": batch, "vocabulary": vocabulary}
    for batch, vocabulary in (*_SHAPES, (2, 128256), (8, 128256), (32, 128256), (128, 128256), (129, 128256), (256, 128256))
)


def make(point: dict[str, Any], device: str, seed: int) -> dict[str, Any]:
    """Logits float32 [batch, vocabulary] of the size that a model's have, and temperatures."""
    import torch  # noqa: PLC0415

    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    logits = torch.randn(point["batch"], point["vocabulary"], device=device, generator=generator).mul_(4.0)
    temperature = torch.rand(point["batch"], device=device, generator=generator).mul_(1.5).add_(0.5)
    return {"inputs": {"logits": logits, "temperature": temperature}, "fresh": ("logits",)}


def call(case: dict[str, Any]) -> Any:
    import flashinfer.sampling  # noqa: PLC0415

    return flashinfer.sampling.softmax(case["inputs"]["logits"], case["inputs"]["temperature"])


def reference(case: dict[str, Any]) -> Any:
    inputs = case["inputs"]
    return (inputs["logits"].double() / inputs["temperature"].double().unsqueeze(1)).softmax(1)


def bytes_and_flops(point: dict[str, Any]) -> tuple[int, int]:
    """Logits read and probabilities written once; four operations an element."""
    elements = point["batch"] * point["vocabulary"]
    return 8 * elements, 4 * elements
