"""Compiles the Triton kernel for GPUs that this machine need not have.

python -m upkernel.paged_decode.triton_compile [TARGET ...] prints size, shared memory and warps of every specialisation.
Used by the tests, so that a change that breaks an older NVIDIA or an AMD GPU is noticed without one.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

from .triton_kernel import paged_decode_kernel
from .triton_launch import Tile, choose_tile, constants

__all__ = ["TARGETS", "Specialisation", "compile_for", "specialisations"]

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5"}
# Arguments that are multiples of 16 in every real call: pointers to tensors, strides of whole rows.
ALIGNED = ("q", "k", "v", "out", "part_ml", "part_o", "q_stride_t", "q_stride_h", "o_stride_t", "o_stride_h")
ALIGNED_STRIDES = ("k_stride_p", "k_stride_t", "k_stride_h", "v_stride_p", "v_stride_t", "v_stride_h")


@dataclass(frozen=True)
class Specialisation:
    """What the compiler sees of a call."""

    q: torch.dtype = torch.bfloat16
    kv: torch.dtype = torch.bfloat16
    head_dim: int = 128
    group: int = 4
    q_len: int = 1
    page: int = 16
    everything: bool = False  # window, soft cap, sinks, LSE, tensor scales, flat page list


def specialisations() -> list[Specialisation]:
    """Few that together use every branch of the kernel."""
    bf16, f16, e4m3, e5m2 = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2
    return [
        Specialisation(),
        Specialisation(f16, f16, 64, 7, page=1, everything=True),
        Specialisation(bf16, e4m3, 128, 8, q_len=2, everything=True),
        Specialisation(f16, e5m2, 256, 1, page=128),
        Specialisation(bf16, bf16, 128, 16, q_len=8),
    ]


def signature_of(s: Specialisation, raw_fp8: bool) -> dict[str, str]:
    """Types of the run-time arguments, by name."""
    kv = "u8" if raw_fp8 and s.kv.itemsize == 1 else TYPES[s.kv]
    pointers = dict.fromkeys(("table", "indptr", "lens", "counters", "set_counters"), "*i32")
    pointers |= dict.fromkeys(("lse", "k_scale", "v_scale", "sinks", "part_ml", "part_o"), "*fp32")
    pointers |= {"q": f"*{TYPES[s.q]}", "out": f"*{TYPES[s.q]}", "k": f"*{kv}", "v": f"*{kv}"}
    floats = dict.fromkeys(("logit_scale", "k_scale_value", "v_scale_value", "soft_cap"), "fp32")
    known = pointers | floats
    return {name: known.get(name, "i32") for name in paged_decode_kernel.arg_names}


def compile_for(target: GPUTarget, s: Specialisation, tile: Tile | None = None) -> CompiledKernel:
    """The compiled kernel; `.metadata` and `.asm` tell what it takes. Raises what Triton raises."""
    native = target.backend == "cuda" and int(target.arch) >= 89
    rows = max(16, 1 << (s.group * s.q_len - 1).bit_length())
    tile = tile or choose_tile(s.kv.itemsize, s.head_dim, rows)
    flags = dict(FLAT=True, WINDOW=True, CAP=True, SINKS=True, LSE=1, SCALES=3) if s.everything else {}  # noqa: C408
    fixed = constants(s.group, s.q_len, s.head_dim, s.page, 64, tile, s.q, s.kv, native, **flags)
    signature = signature_of(s, raw_fp8=not native) | dict.fromkeys(fixed, "constexpr")
    index = {name: i for i, name in enumerate(paged_decode_kernel.arg_names)}
    aligned = {(index[n],): [["tt.divisibility", 16]] for n in (*ALIGNED, *ALIGNED_STRIDES)}
    source = ASTSource(paged_decode_kernel, signature, {(index[n],): x for n, x in fixed.items()}, aligned)
    return triton.compile(source, target=target, options={"num_warps": tile.warps, "num_stages": tile.stages})


def main(names: list[str]) -> int:
    """Compiles every specialisation for the named targets, or for all; returns 0, or 2 for an unknown name."""
    if unknown := set(names) - set(TARGETS):
        print(f"unknown targets {sorted(unknown)}, known are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    for name, s in itertools.product(names or TARGETS, specialisations()):
        done = compile_for(TARGETS[name], s)
        size = len(done.asm.get("cubin") or done.asm.get("hsaco"))
        print(f"{name:7s} {s}: {size} bytes, {done.metadata.shared} bytes of shared memory, {done.metadata.num_warps} warps")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
