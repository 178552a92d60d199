"""Kernels as CUPTI saw them, where the package `cupti-python` is installed: the time without launches, and what really ran."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["KernelSpan", "busy_us", "kernel_spans"]

_BUFFER_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class KernelSpan:
    """One execution of a kernel, copy or fill, in ns of the device's clock."""

    name: str
    start: int
    end: int


def kernel_spans(run: Callable[[], Any]) -> tuple[KernelSpan, ...] | None:
    """What the device executed while `run` ran and after it, until idle; None where CUPTI cannot be used.

    CUPTI is attached for this call only: while it is, launches take longer, so nothing that counts is timed then.
    """
    if importlib.util.find_spec("cupti") is None:
        return None
    try:
        from cupti import cupti  # noqa: PLC0415
    except ImportError:
        # The package is there and its library is not, or is of another CUDA version.
        return None
    kinds = (cupti.ActivityKind.CONCURRENT_KERNEL, cupti.ActivityKind.MEMCPY, cupti.ActivityKind.MEMSET)
    found: list[KernelSpan] = []

    def completed(activities: list[Any]) -> None:
        found.extend(
            KernelSpan(str(getattr(one, "name", one.kind)), int(one.start), int(one.end))
            for one in activities
            if one.kind in kinds
        )

    cupti.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), completed)
    for kind in kinds:
        cupti.activity_enable(kind)
    try:
        run()
    finally:
        cupti.activity_flush_all(1)
        for kind in kinds:
            cupti.activity_disable(kind)
        cupti.finalize()
    return tuple(sorted(found, key=lambda one: one.start))


def busy_us(spans: tuple[KernelSpan, ...]) -> float:
    """Time in which at least one of them ran: kernels of a graph may overlap."""
    busy, until = 0, 0
    for one in spans:
        start = max(one.start, until)
        busy += max(0, one.end - start)
        until = max(until, one.end)
    return busy / 1e3
