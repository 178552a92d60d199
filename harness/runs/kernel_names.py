"""The names of a run's kernels, short enough for a report: namespaces and name, without template arguments and parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["PREFIX", "kernels_in", "short_name", "told"]

# What a run's detail begins with when it tells of kernels.
PREFIX = "kernels: "
_LENGTH = re.compile(r"\d+")


def short_name(name: str) -> str:
    """`_ZN10flashinfer9MyKernelILi4EEEvPf` -> `flashinfer::MyKernel` (Itanium C++ ABI, 5.1.2); an unmangled name stays."""
    if not name.startswith("_Z"):
        return name
    at = 3 if name.startswith("_ZN") else 2
    parts: list[str] = []
    while found := _LENGTH.match(name, at):
        start = found.end()
        at = start + int(found.group())
        part = name[start:at]
        # An anonymous namespace's name is another one in each build.
        if not part.startswith("_GLOBAL__N_"):
            parts.append(part)
    return "::".join(parts) or name


def told(names: Iterable[str]) -> str:
    """A run's detail: the kernels that ran, each once."""
    short = sorted({short_name(name) for name in names})
    return PREFIX + ", ".join(short) if short else ""


def kernels_in(detail: str) -> frozenset[str]:
    """The names in a run's detail; empty when it tells of none."""
    return frozenset(detail.removeprefix(PREFIX).split(", ")) if detail.startswith(PREFIX) else frozenset()
