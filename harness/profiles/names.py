"""Kernel names made comparable between builds: the same kernel of two arms must get the same name.

What is dropped: the parameter list, template arguments, return types, anonymous namespaces and lambdas' numbers of a C++ name;
the specialisation suffix that Triton appends (0d1d2d3de…) and the numbers that torch.compile gives its fusions. What is kept:
anything that names another algorithm, such as the tile of a cuBLAS kernel.
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["normalise"]

# Triton up to 2.x and, with TRITON_KERNEL_DUMP, later: one group a parameter, d = divisible by 16, c = constant, e = 8-aligned.
_TRITON_SUFFIX = re.compile(r"_(?:\d+[dce]*){2,}$")
_TRITON_ONE = re.compile(r"_0[dce]+\d*[dce]*$")
# torch.compile: triton_poi_fused_add_mul_3 -> triton_poi_fused_add_mul: the number is the order in its module.
_INDUCTOR = re.compile(r"^(triton_(?:poi|per|red|tem|for|spl|mm)_fused\w*?)_\d+(?:_\w*\d[dce]\w*)?$")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::|_GLOBAL__N__\w+::")
_WRAPPED = re.compile(r"(?:^|\b)(?:cutlass|cute)::(?:device_kernel|Kernel2?)\s*<(.*)>", re.DOTALL)
# What a generic launcher runs; the launcher's own name says nothing.
_PAYLOADS = (
    re.compile(r"\b(flash::(?:enable_sm\w+<)?(?:flash::)?Flash\w+)"),
    re.compile(r"\b(Flash(?:Attn|Attention)\w*)"),
    re.compile(r"\b(Gemm(?:Universal|Batched|SplitK\w*)?)\b"),
)
_ATEN_LAUNCHERS = ("elementwise_kernel", "reduce_kernel", "index_elementwise_kernel", "gpu_index_kernel")
_ATEN_FUNCTOR = re.compile(
    r"\b(?:at::native::)?(?:binary_internal::)?(\w*(?:Functor_?\w*|Ops|_kernel_cuda|_kernel_impl|_cuda|_kernel))\b(?!\s*::\s*\w+_kernel<)"
)
_ATEN_PLUMBING = frozenset({"gpu_kernel_impl", "gpu_kernel_impl_nocast", "elementwise_kernel", "gpu_kernel"})
_ATEN_ADAPTERS = frozenset({"BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor"})
_SPACES = re.compile(r"\s+")


@lru_cache(maxsize=65536)
def normalise(name: str) -> str:
    """The comparable name of a kernel; never empty.

    `name` is the demangled name as CUPTI gives it, or a mangled one (kept as it is, without template digits).
    """
    text = _SPACES.sub(" ", name).strip()
    if not text:
        return "(no name)"
    plain = _ANONYMOUS.sub("", text)
    bare = _without_arguments(plain)
    payload = _payload(plain, bare)
    bare = _triton(bare)
    result = f"{bare}<{payload}>" if payload else bare
    return result or text


def _without_arguments(text: str) -> str:
    """`void a::b<(int)4, c<d>>(T1 *, int)` -> `a::b`: brackets are matched: template arguments hold operators and calls."""
    kept: list[str] = []
    depth = 0
    for index, character in enumerate(text):
        if character in "<([{":
            # operator() and operator< are names, not brackets.
            if depth == 0 and character in "(<" and text[:index].rstrip().endswith("operator"):
                kept.append(character)
                continue
            if depth == 0 and character == "(" and kept:
                break
            depth += 1
        elif character in ">)]}":
            depth = max(0, depth - 1)
        elif depth == 0:
            kept.append(character)
    return "".join(kept).strip().rsplit(" ", 1)[-1]


def _payload(plain: str, bare: str) -> str:
    """What a generic launcher runs, so that not every elementwise or CUTLASS kernel is the same row; empty for others."""
    last = bare.rsplit("::", 1)[-1]
    if last in {"device_kernel", "Kernel", "Kernel2"} and _WRAPPED.search(plain):
        for pattern in _PAYLOADS:
            found = pattern.search(plain)
            if found:
                return found.group(1).rsplit("::", 1)[-1]
        return ""
    if bare.startswith("at::native") and any(one in last for one in _ATEN_LAUNCHERS):
        inner = plain[plain.find("<") + 1 :]
        words = [found.group(1) for found in _ATEN_FUNCTOR.finditer(inner)]
        useful = [word for word in words if word != last and word not in _ATEN_PLUMBING]
        # BinaryFunctor<…, MulFunctor<…>> applies MulFunctor: the adapter is named only when nothing else is.
        exact = [word for word in useful if word not in _ATEN_ADAPTERS]
        return (exact or useful or [""])[0]
    return ""


def _triton(bare: str) -> str:
    """Without the suffixes that compilers number: they differ between two builds of one source."""
    found = _INDUCTOR.match(bare)
    if found:
        return found.group(1)
    if "::" in bare:
        return bare
    shorter = _TRITON_SUFFIX.sub("", bare)
    shorter = _TRITON_ONE.sub("", shorter)
    return shorter or bare
