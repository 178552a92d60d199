"""Notices compilers at work: extension modules that appear, and new files in the caches of Triton, Inductor and FlashInfer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["CompileWatch"]

# Folders of compiled kernels, as the engines name them; an arm sets them to folders of its own.
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "VLLM_CACHE_ROOT", "SGLANG_CACHE_DIR")
SHOWN = 3


class CompileWatch:
    """What was compiled or loaded since it was made."""

    def __init__(self) -> None:
        self._files = _files()
        self._modules = _binaries()

    def found(self) -> tuple[str, ...]:
        """Names of what is new, at most a few; empty when nothing is."""
        new = sorted(Path(one).name for one in _files() - self._files)
        loaded = sorted(one for one in _binaries() - self._modules)
        every = [*new, *loaded]
        return tuple(every[:SHOWN]) + ((f"and {len(every) - SHOWN} more",) if len(every) > SHOWN else ())


def _files() -> set[str]:
    found: set[str] = set()
    folders = [os.environ[name] for name in CACHES if name in os.environ]
    for folder in folders:
        for place, _, names in os.walk(folder):
            found.update(os.path.join(place, name) for name in names if not name.endswith((".lock", ".pyc")))  # noqa: PTH118
    return found


def _binaries() -> set[str]:
    """Extension modules in this process: a compiled kernel is loaded as one."""
    return {name for name, module in list(sys.modules.items()) if str(getattr(module, "__file__", "")).endswith(".so")}
