"""A peer file of kernels that cheat, for a GPU: each must be caught by the guard that its variant names.

The task is a softmax over rows. The known ways to look fast: keep the result, leave the timed stream, prepare the input for the
next call, keep the input in the L2, and do the work when somebody looks.
"""

from __future__ import annotations

from typing import Any

WHY = "Known ways to look fast."
LINKS = ()
POINTS = (
    {"name": "rows", "rows": 2048, "columns": 8192},
    # Says that it must move ten times what it does, so its time is below the floor.
    {"name": "claims-more", "rows": 2048, "columns": 8192, "claimed": 10},
)
TOLERANCE = {"float32": 1e-5}
VARIANTS = {
    "honest": {"role": "ours", "what": "torch.softmax", "caught_by": ""},
    "kept-output": {"role": "ours", "what": "computes once, then returns what it has", "caught_by": "results"},
    "kept-copy": {"role": "ours", "what": "computes once, then copies what it has", "caught_by": "results"},
    "side-stream": {"role": "ours", "what": "launches on a stream of its own", "caught_by": "results"},
    "input-written": {"role": "ours", "what": "leaves the input prepared for the next call", "caught_by": "results"},
    "persisting": {"role": "ours", "what": "sets L2 aside for what it will read again", "caught_by": "results"},
    "lazy": {"role": "ours", "what": "returns a tensor that computes when it is looked at", "caught_by": "results"},
    "nothing": {"role": "ours", "what": "launches nothing", "caught_by": "results"},
    "nan": {"role": "ours", "what": "writes NaN into one row", "caught_by": "results"},
    "half": {"role": "ours", "what": "leaves the second half of the rows unwritten", "caught_by": "results"},
}


def make(point: dict[str, Any], device: str, seed: int, variant: str) -> dict[str, Any]:
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    x = torch.randn(point["rows"], point["columns"], device=device, generator=generator)
    return {"inputs": {"x": x}, "fresh": ("x",), "out": torch.empty_like(x), "kept": None, "stream": torch.cuda.Stream()}


def call(case: dict[str, Any]) -> Any:
    import torch

    x, out = case["inputs"]["x"], case["out"]
    variant = case["variant"]
    if variant in {"kept-output", "kept-copy"}:
        if case["kept"] is None:
            case["kept"] = torch.softmax(x, 1)
        return case["kept"] if variant == "kept-output" else out.copy_(case["kept"])
    if variant == "side-stream":
        with torch.cuda.stream(case["stream"]):
            torch.softmax(x, 1, out=out)
        return out
    if variant == "lazy":
        return _lazy(case)
    if variant == "nothing":
        return out
    if variant == "half":
        half = x.shape[0] // 2
        torch.softmax(x[:half], 1, out=out[:half])
        return out
    if variant == "persisting" and not torch.cuda.is_current_stream_capturing():
        _set_aside()
    torch.softmax(x, 1, out=out)
    if variant == "input-written":
        x.sub_(x.amax(1, keepdim=True))
    if variant == "nan":
        out[5].fill_(float("nan"))
    return out


def _lazy(case: dict[str, Any]) -> Any:
    import torch

    class Lazy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), keywords=None):
            with torch._C.DisableTorchFunctionSubclass():
                torch.softmax(case["inputs"]["x"], 1, out=case["out"])
                return function(*arguments, **(keywords or {}))

    return case["out"].as_subclass(Lazy)


def _set_aside() -> None:
    import ctypes
    from pathlib import Path

    maps = Path("/proc/self/maps").read_text(encoding="ascii", errors="replace")
    runtime = ctypes.CDLL(next(line.split()[-1] for line in maps.splitlines() if "libcudart" in line))
    # 6 is cudaLimitPersistingL2CacheSize.
    assert runtime.cudaDeviceSetLimit(6, ctypes.c_size_t(30 * 2**20)) == 0


def reference(case: dict[str, Any]) -> Any:
    import torch

    return torch.softmax(case["inputs"]["x"].double(), 1)


def bytes_and_flops(point: dict[str, Any]) -> tuple[int, int]:
    return point.get("claimed", 1) * 8 * point["rows"] * point["columns"], 0
