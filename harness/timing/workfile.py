"""A kernel workload's Python file: what it must define, and reading it without an engine.

The top level of the file uses the standard library alone, so the harness can read its description; torch and the engine are
imported inside its functions, which run in the worker.

    WHY, LINKS, POINTS          required: one sentence, public issues, and the shapes, each a dict with a unique "name"
    TOLERANCE                   relative error allowed, by dtype of the output: {"bfloat16": 0.01}
    PRIMARY                     "cold" (default), "warm" or "host": the time that the verdict is about
    PUBLISHED                   numbers that others published: dicts with source, gpu, point, what, value, unit
    DEVICES, VARIANTS           ("cuda",) unless given; the kernels of a peer file, by name
    make(point, device, seed)   a dict: "inputs" (name -> tensor that call() may only read), "fresh" (names of inputs that may
                                change between two calls), and whatever call() needs; with VARIANTS there is a fourth argument
    call(case)                  launches, and returns the output tensor or a tuple of them
    reference(case)             what call() should return, from case["inputs"]
    bytes_and_flops(point)      what must be moved and computed at least once: floors and GB/s come from it
    host(case)                  optional: a host function whose time is a metric of its own
    covers(point, variant)      optional: "" or why the variant has no such point
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["Workfile", "WorkfileError", "load_workfile"]

STATES = ("cold", "warm", "host")
ROLES = ("ours", "peer", "ceiling")
DEFAULT_TOLERANCE = {"bfloat16": 0.01, "float16": 0.005, "float32": 1e-5, "float64": 1e-12}
_NAME = re.compile(r"[A-Za-z0-9._/+-]+")
_PUBLISHED = ("source", "gpu", "point", "what", "value", "unit")


class WorkfileError(Exception):
    """The file cannot be read, or lacks something; the message names it."""


@dataclass(frozen=True, slots=True)
class Workfile:
    """The file's description and functions."""

    path: Path
    why: str
    links: tuple[str, ...]
    points: tuple[Mapping[str, Any], ...]
    published: tuple[Mapping[str, Any], ...]
    primary: str
    devices: tuple[str, ...]
    tolerance: Mapping[str, float]
    variants: Mapping[str, Mapping[str, Any]]
    make: Callable[..., dict[str, Any]]
    call: Callable[[dict[str, Any]], Any]
    reference: Callable[[dict[str, Any]], Any]
    bytes_and_flops: Callable[[Mapping[str, Any]], tuple[int, int]]
    host: Callable[[dict[str, Any]], Any] | None = None
    covers: Callable[[Mapping[str, Any], str], str] | None = None
    # By point name.
    by_name: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def tolerance_of(self, dtype: str, point: Mapping[str, Any], variant: str | None) -> float:
        """The relative error allowed: the variant's own, else the point's, else the dtype's; integers must be equal."""
        own = self.variants[variant].get("tolerance") if variant else None
        found = own if own is not None else point.get("tolerance", self.tolerance.get(dtype, 0.0))
        return float(found)


def load_workfile(path: Path) -> Workfile:
    """Execute the file and check what it defines. Raises WorkfileError."""
    module = _execute(path)
    missing = [
        name for name in ("WHY", "LINKS", "POINTS", "make", "call", "reference", "bytes_and_flops") if not _has(module, name)
    ]
    if missing:
        raise WorkfileError(f"{path} does not define {', '.join(missing)}; a kernel workload needs each of them")
    points = _points(path, module.POINTS)
    variants = getattr(module, "VARIANTS", {})
    for name, variant in variants.items():
        if variant.get("role") not in ROLES:
            raise WorkfileError(f"{path}: variant {name!r} has role {variant.get('role')!r}, not one of {', '.join(ROLES)}")
    primary = getattr(module, "PRIMARY", "cold")
    host = getattr(module, "host", None)
    if primary not in STATES or (primary == "host" and host is None):
        need = "; host needs a function host(case)" if primary == "host" else ""
        raise WorkfileError(f"{path}: PRIMARY is {primary!r}, not one of {', '.join(STATES)}{need}")
    published = tuple(module.PUBLISHED) if _has(module, "PUBLISHED") else ()
    for one in published:
        if tuple(sorted(one)) != tuple(sorted(_PUBLISHED)):
            raise WorkfileError(f"{path}: a PUBLISHED number has the fields {sorted(one)}, not {sorted(_PUBLISHED)}")
    return Workfile(
        path=path,
        why=str(module.WHY),
        links=tuple(module.LINKS),
        points=points,
        published=published,
        primary=primary,
        devices=tuple(getattr(module, "DEVICES", ("cuda",))),
        tolerance={**DEFAULT_TOLERANCE, **getattr(module, "TOLERANCE", {})},
        variants=variants,
        make=module.make,
        call=module.call,
        reference=module.reference,
        bytes_and_flops=module.bytes_and_flops,
        host=host,
        covers=getattr(module, "covers", None),
        by_name={str(point["name"]): point for point in points},
    )


def _has(module: ModuleType, name: str) -> bool:
    return hasattr(module, name)


def _execute(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"upkernel_workload_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise WorkfileError(f"{path} is not a Python file that can be read")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise WorkfileError(
            f"{path} imports {error.name} at its top level; import torch and the engine inside the functions, so that the file "
            "can be read without them"
        ) from error
    except Exception as error:
        raise WorkfileError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    return module


def _points(path: Path, points: Any) -> tuple[Mapping[str, Any], ...]:
    found = tuple(points)
    if not found:
        raise WorkfileError(f"{path}: POINTS is empty; give at least one shape")
    names: set[str] = set()
    for point in found:
        name = point.get("name") if isinstance(point, Mapping) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise WorkfileError(f"{path}: a point's name is {name!r}; give letters, digits and any of . _ / + -")
        if name in names:
            raise WorkfileError(f"{path}: two points are called {name!r}; each needs a name of its own")
        names.add(name)
    return found
