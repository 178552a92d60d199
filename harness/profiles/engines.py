"""What makes an engine's own script open the profiler's range around its measured part, and mark its steps.

vLLM does both itself (0.24: `--profile` with the profiler "cuda"; `vllm/benchmarks/latency.py`, `vllm/profiler/wrapper.py`):
one batch after the warm-up, every step in an NVTX range. SGLang's bench_one_batch opens one range for the prompt and one for
some decode steps, and marks its steps for PyTorch's profiler alone: `sglang_ranges.py` makes it one range with NVTX marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError
from harness.vocabulary import Engine

__all__ = ["Profiled", "engine_of", "profiled"]

SGLANG_RANGES = Path(__file__).with_name("sglang_ranges.py")
_VLLM_WORDS = ("vllm", "vllm.entrypoints.cli.main")
_SGLANG_WORDS = ("sglang.bench_one_batch", "sglang.benchmark.one_batch")
_SGLANG_FILES = ("bench_one_batch.py", "one_batch.py")
# Options of a Python interpreter that take no value; what follows them is the module or the script.
_BARE_OPTIONS = frozenset({"-u", "-P", "-I", "-s", "-E", "-B"})


@dataclass(frozen=True, slots=True)
class Profiled:
    """The command to run under the profiler, what it needs in its environment, and whether it opens a range."""

    command: tuple[str, ...]
    variables: Mapping[str, str]
    ranged: bool


def engine_of(command: Sequence[str]) -> Engine | None:
    """The engine whose script a command runs; None for any other program."""
    for word in command:
        if word in _VLLM_WORDS or Path(word).name == "vllm":
            return Engine.VLLM
        if word in _SGLANG_WORDS or word.startswith("sglang."):
            return Engine.SGLANG
    return None


def profiled(engine: Engine | None, command: Sequence[str], *, whole: bool = False) -> Profiled:
    """The engine's script with its profiling on. Raises UsageError for a script that has no profiled part.

    A command of no engine is run as it is: it calls cudaProfilerStart itself, or is recorded whole.
    """
    if whole or engine is None or engine is Engine.FLASHINFER:
        return Profiled(tuple(command), {}, ranged=not whole)
    return _vllm(command) if engine is Engine.VLLM else _sglang(command)


def _vllm(command: Sequence[str]) -> Profiled:
    if not {"latency", "throughput"} & set(command):
        raise UsageError(
            "vllm bench latency and vllm bench throughput can be profiled from their command line; for a server start the "
            "range by hand (POST /start_profile) and record it with nsys, then read the export with --from"
        )
    added = [] if "--profile" in command else ["--profile"]
    if not any(word.startswith("--profiler-config") for word in command):
        added += ["--profiler-config", '{"profiler":"cuda"}']
    # A forked worker shares the parent's half-initialised injection library; a spawned one starts with its own.
    return Profiled((*command, *added), {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}, ranged=True)


def _sglang(command: Sequence[str]) -> Profiled:
    words = list(command)
    if not any(word in _SGLANG_WORDS or Path(word).name in _SGLANG_FILES for word in words):
        raise UsageError(
            "of SGLang's scripts, bench_one_batch can be profiled from its command line; for a server start the range by hand "
            "(POST /start_profile with the activity CUDA_PROFILER) and record it with nsys, then read the export with --from"
        )
    at = 1
    while at < len(words) and words[at] in _BARE_OPTIONS:
        at += 1
    if at >= len(words) or not (words[at] == "-m" or words[at].endswith(".py")):
        raise UsageError(
            f"cannot tell Python's own options from the script in {' '.join(words)!r}: "
            "give python -m sglang.bench_one_batch ..."
        )
    added = [] if "--profile" in words else ["--profile", "--profile-activities", "CUDA_PROFILER", "--profile-stage", "prefill"]
    return Profiled((*words[:at], str(SGLANG_RANGES), *words[at:], *added), {}, ranged=True)
