"""Nothing may be compiled while the clock runs: what logs say, and what appeared in the arm's own caches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from harness.runs.model import GuardReading
from harness.runs.outcomes import without_paths
from harness.vocabulary import Guard, GuardState

__all__ = ["CacheWatch", "compilation_guard", "window_guard"]

# Lines of vLLM, Inductor, Triton and FlashInfer that tell of compiling.
_COMPILING = re.compile(
    r"torch\.compile takes|Compiling a graph|Dynamo bytecode transform|JIT compil|Autotun|ninja: |\bnvcc\b", re.IGNORECASE
)
# vLLM announces that it will tell of compilations; that is none.
_ANNOUNCED = re.compile(r"JIT monitor activated", re.IGNORECASE)
# What compilers leave: Triton's and CUDA's binaries, libraries of Inductor, ninja and tvm-ffi. An engine that finds them
# there loads them, so a new one means that something was compiled.
_COMPILED = frozenset({".cubin", ".ptx", ".hsaco", ".so", ".o"})
# The arm's caches (harness.arms.variables); the last three are where FlashInfer, tvm-ffi and others put theirs.
_CACHES = (
    *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT", "SGLANG_CACHE_DIR"),
    *("FLASHINFER_WORKSPACE_BASE", "TVM_FFI_CACHE_DIR", "XDG_CACHE_HOME"),
)
_SHOWN = 3


class CacheWatch:
    """Looks into the caches that a process's variables name when made, and again in `new`."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._folders = sorted({Path(variables[name]) for name in _CACHES if variables.get(name)})
        self._before = self._files()

    def _files(self) -> frozenset[Path]:
        return frozenset(
            file for folder in self._folders if folder.is_dir() for file in folder.rglob("*") if file.suffix in _COMPILED
        )

    def new(self) -> tuple[str, ...]:
        """Names of the compiled files that were not there before."""
        return tuple(sorted(file.name for file in self._files() - self._before))


def compilation_guard(log: Path, offset: int, caches: CacheWatch | None = None) -> GuardReading:
    """Looks at what a server logged from byte `offset` on, and at the caches since they are watched."""
    try:
        with log.open("rb") as stream:
            stream.seek(offset)
            text = stream.read().decode("utf-8", errors="replace")
    except OSError as error:
        return GuardReading(Guard.COMPILATION, GuardState.ABSENT, f"the server's log cannot be read: {error.strerror}")
    if (said := _said(text)) is not None:
        return GuardReading(Guard.COMPILATION, GuardState.FIRED, f"the server compiled during the run: {said}")
    new = () if caches is None else caches.new()
    if new:
        more = f" and {len(new) - _SHOWN} more" if len(new) > _SHOWN else ""
        named = ", ".join(new[:_SHOWN])
        return GuardReading(
            Guard.COMPILATION, GuardState.FIRED, f"{len(new)} compiled files are new in the arm's caches: {named}{more}"
        )
    where = "the server logged no compilation during the run"
    return GuardReading(
        Guard.COMPILATION, GuardState.PASSED, where if caches is None else f"{where}, and no compiled file is new in its caches"
    )


def window_guard(log: Path, measuring: re.Pattern[str] | None) -> GuardReading:
    """Looks at what a script that runs the engine itself logged after it began to measure; before that it may compile.

    What was compiled without a word cannot be seen here: the caches do not tell when.
    """
    if measuring is None:
        return GuardReading(Guard.COMPILATION, GuardState.ABSENT, "this script does not log when it begins to measure")
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return GuardReading(Guard.COMPILATION, GuardState.ABSENT, f"the script's log cannot be read: {error.strerror}")
    begun = measuring.search(text)
    if begun is None:
        return GuardReading(Guard.COMPILATION, GuardState.ABSENT, "the script's log does not say when it began to measure")
    said = _said(text[begun.end() :])
    if said is not None:
        return GuardReading(Guard.COMPILATION, GuardState.FIRED, f"the engine compiled while it was measured: {said}")
    return GuardReading(Guard.COMPILATION, GuardState.PASSED, "the engine logged no compilation while it was measured")


def _said(text: str) -> str | None:
    """The first line that tells of compiling."""
    found = next((line for line in text.splitlines() if _COMPILING.search(line) and not _ANNOUNCED.search(line)), None)
    return None if found is None else without_paths(found).strip()[:160]
