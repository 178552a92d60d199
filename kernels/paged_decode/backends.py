"""Which kernel serves a call: CUDA where it can be compiled and covers the call, Triton otherwise; never in silence.

``UPKERNEL_PAGED_DECODE=cuda|triton`` fixes the choice; a call that the fixed kernel does not cover is then an error.
"""

from __future__ import annotations

import enum
import functools
import importlib.util
import logging
import os

import torch

from .arguments import Arguments, NotCoveredError
from .cuda_build import Build, BuildError, compile_library, find_nvcc

__all__ = ["Backend", "build_of", "choose", "cuda_refusal"]

log = logging.getLogger("upkernel.paged_decode")
NAMES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e5m2: "float8_e5m2",
}
# 16-byte units are counted in 32 bits by the CUDA kernel (csrc/params.cuh).
CUDA_SPAN = 2**32 * 16
CUDA_COLUMNS = 16


class Backend(enum.Enum):
    """A kernel."""

    CUDA = "cuda"
    TRITON = "triton"


def build_of(a: Arguments) -> Build:
    """The specialisation of the CUDA kernel that serves a call."""
    arch = _arch(a.q.device)
    return Build(NAMES[a.q.dtype], NAMES[a.k_cache.dtype], a.head_dim, a.group * a.q_len, a.q_len > 1, arch=arch)


@functools.cache
def _arch(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return "90a" if (major, minor) == (9, 0) else f"{major}{minor}"


def cuda_refusal(a: Arguments) -> str | None:
    """Why the CUDA kernel does not serve a call (checked arguments), or None if it does."""
    if a.q.device.type != "cuda" or torch.version.hip is not None:
        return f"the tensors are on {a.q.device}, which is no NVIDIA GPU"
    missing = _machine_refusal(a.q.device)
    return missing or _call_refusal(a)


@functools.cache
def _machine_refusal(device: torch.device) -> str | None:
    if find_nvcc() is None:
        return "nvcc was not found (CUDA_HOME, PATH, /usr/local/cuda)"
    if importlib.util.find_spec("tvm_ffi") is None:
        return "apache-tvm-ffi is not installed (pip install 'upkernel[cuda]')"
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        # It compiles for sm_80, but nobody has run it there, and its stages assume 227 KB of shared memory.
        return f"the CUDA kernel was tested on compute capability 9.0 only, {device} has {capability[0]}.{capability[1]}"
    return None


def _call_refusal(a: Arguments) -> str | None:
    rows = a.group * a.q_len
    if rows > CUDA_COLUMNS:
        return f"{a.group} query heads a KV head times {a.q_len} queries are {rows} rows, covered are {CUDA_COLUMNS}"
    strides = (a.q.stride(0), a.q.stride(1), a.out.stride(0), a.out.stride(1))
    if any(s % 4 for s in strides) or a.q.data_ptr() % 8 or a.out.data_ptr() % 8:
        return f"rows of q and out are not aligned to 8 bytes (strides {strides})"
    return _cache_refusal(a.k_cache, a.v_cache)


def _cache_refusal(k: torch.Tensor, v: torch.Tensor) -> str | None:
    size = k.element_size()
    for i, what in enumerate(("page", "token", "head")):
        if k.shape[i] > 1 and k.stride(i) != v.stride(i):
            return f"the {what} stride is {k.stride(i)} in k_cache and {v.stride(i)} in v_cache"
        if k.shape[i] > 1 and k.stride(i) * size % 16:
            return f"the {what} stride of the cache is {k.stride(i) * size} bytes, which is not a multiple of 16"
    extent = sum((n - 1) * s for n, s in zip(k.shape, k.stride(), strict=True)) * size
    if extent >= CUDA_SPAN:
        return f"the cache spans {extent} bytes, the kernel addresses {CUDA_SPAN}"
    if k.data_ptr() % 16 or v.data_ptr() % 16:
        return "k_cache or v_cache is not aligned to 16 bytes"
    return None


@functools.cache
def _compiled(build: Build) -> str | None:
    """Compiles and loads; the reason if that fails. Workers that start together wait for one compilation."""
    try:
        compile_library(build, verbose=True)
    except BuildError as error:
        return f"compilation failed: {error}"
    return None


@functools.cache
def _say_once(reason: str) -> None:
    log.warning("the Triton kernel serves paged decode, not the CUDA kernel: %s", reason)


def choose(a: Arguments) -> Backend:
    """The kernel for checked arguments. Raises NotCoveredError where the environment asks for one that cannot serve."""
    wanted = os.environ.get("UPKERNEL_PAGED_DECODE", "")
    if wanted not in {"", "cuda", "triton"}:
        raise ValueError(f"UPKERNEL_PAGED_DECODE is {wanted!r}, it must be cuda, triton or unset")
    if wanted == "triton":
        return Backend.TRITON
    reason = cuda_refusal(a)
    if reason is None:
        reason = _compiled(build_of(a))
    if reason is None:
        return Backend.CUDA
    if wanted == "cuda":
        raise NotCoveredError(f"UPKERNEL_PAGED_DECODE=cuda, but {reason}")
    _say_once(reason)
    return Backend.TRITON
