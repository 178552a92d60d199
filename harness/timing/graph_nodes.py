"""Names of the kernels in a CUDA graph, from the driver.

A kernel that bypasses the stream that is captured leaves no node: replays then skip it, and stale output would pass for a
result (flashinfer-bench issue 414).
"""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["kernel_names"]

_KERNEL_NODE = 0
_UNNAMED = "(kernel without a name)"


class _KernelParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h (CUDA 12 and 13)."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def kernel_names(graph: int) -> tuple[str, ...] | None:
    """One name for each kernel node of a graph (a CUgraph handle); None where the driver cannot tell."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_size_t()
        if driver.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)) != 0:
            return None
        nodes = (ctypes.c_void_p * max(1, count.value))()
        if driver.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count)) != 0:
            return None
        found = []
        for node in nodes[: count.value]:
            kind = ctypes.c_int()
            if driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)) != 0:
                return None
            if kind.value == _KERNEL_NODE:
                found.append(_name(driver, node))
    except (OSError, AttributeError):
        return None
    return tuple(found)


def _name(driver: Any, node: int | None) -> str:
    parameters = _KernelParameters()
    if driver.cuGraphKernelNodeGetParams_v2(ctypes.c_void_p(node), ctypes.byref(parameters)) != 0:
        return _UNNAMED
    name = ctypes.c_char_p()
    # A node holds a function or a kernel (the context-independent form that newer runtimes make).
    for handle, ask in ((parameters.function, driver.cuFuncGetName), (parameters.kernel, driver.cuKernelGetName)):
        if handle and ask(ctypes.byref(name), ctypes.c_void_p(handle)) == 0 and name.value:
            return name.value.decode(errors="replace")
    return _UNNAMED
