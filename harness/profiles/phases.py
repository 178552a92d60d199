"""From the ranges that engines push around a step to the phase of what was launched in them.

vLLM 0.24 (`vllm/v1/worker/gpu_worker.py`, annotate_profile): execute_context_1(1024)_generation_3(3), as an NVTX range under
its CUDA profiler and as a record_function under its torch profiler. SGLang 0.5.14 (`model_runner.py`,
_build_step_span_name): step[EXTEND bs=1 toks=1024], step[DECODE bs=8].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from harness.vocabulary import Phase

__all__ = ["PHASES", "UNATTRIBUTED", "StepRange", "Timeline", "phase_of", "timeline"]

# Phases as small integers for arrays.
PHASES: tuple[Phase, ...] = (Phase.PREFILL, Phase.DECODE, Phase.OTHER, Phase.UNATTRIBUTED)
UNATTRIBUTED = PHASES.index(Phase.UNATTRIBUTED)

_VLLM = re.compile(r"execute_context_(\d+)\(\d+\)_generation_(\d+)\(\d+\)")
_SGLANG = re.compile(r"step\[(\w+)")
_PLAIN = re.compile(r"(?:upkernel:)?(prefill|decode)\b", re.IGNORECASE)
_SGLANG_MODES = {
    "EXTEND": Phase.PREFILL,
    "MIXED": Phase.PREFILL,
    "SPLIT_PREFILL": Phase.PREFILL,
    "DECODE": Phase.DECODE,
    "TARGET_VERIFY": Phase.DECODE,
}


@lru_cache(maxsize=4096)
def phase_of(text: str) -> Phase | None:
    """The phase that a range's text names, or None for a range that marks no step.

    A step that computes any prompt token is prefill: its kernels run over the prompt and the decoding requests at once.
    """
    found = _VLLM.match(text)
    if found:
        context, generation = int(found.group(1)), int(found.group(2))
        if context:
            return Phase.PREFILL
        return Phase.DECODE if generation else Phase.OTHER
    found = _SGLANG.match(text)
    if found:
        return _SGLANG_MODES.get(found.group(1).upper(), Phase.OTHER)
    found = _PLAIN.match(text)
    return Phase(found.group(1).lower()) if found else None


@dataclass(frozen=True, slots=True)
class StepRange:
    """One step on one thread (any integer that tells threads of all processes apart); times in ns."""

    thread: int
    start: int
    end: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class Timeline:
    """The steps of one thread as segments: segment i begins at edges[i] and ends where the next begins.

    A segment between two steps carries the phase of the step before, and `between` tells it from the step itself: engines
    sample after the range that they push around the model has closed.
    """

    edges: NDArray[np.int64]
    phase: NDArray[np.int8]
    between: NDArray[np.bool_]

    def at(self, times: NDArray[np.int64]) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
        """For each time the phase (an index of PHASES) and whether it lay between steps."""
        index = np.searchsorted(self.edges, times, side="right") - 1
        known = index >= 0
        phase = np.where(known, self.phase[index], np.int8(UNATTRIBUTED)).astype(np.int8)
        return phase, np.where(known, self.between[index], False)


def timeline(steps: Sequence[StepRange]) -> Timeline:
    """The segments of one thread's steps. Where steps nest, the innermost counts."""
    edges: list[int] = []
    phases: list[int] = []
    between: list[bool] = []

    def segment(at: int, phase: Phase, *, after: bool) -> None:
        if edges and edges[-1] == at:
            edges.pop(), phases.pop(), between.pop()
        edges.append(at)
        phases.append(PHASES.index(phase))
        between.append(after)

    stack: list[StepRange] = []

    def close(until: int | None) -> None:
        while stack and (until is None or stack[-1].end <= until):
            ended = stack.pop()
            outer = stack[-1] if stack else None
            segment(ended.end, outer.phase if outer else ended.phase, after=outer is None)

    for step in sorted(steps, key=lambda one: (one.start, -one.end)):
        close(step.start)
        stack.append(step)
        segment(step.start, step.phase, after=False)
    close(None)
    return Timeline(
        edges=np.array(edges, dtype=np.int64),
        phase=np.array(phases, dtype=np.int8),
        between=np.array(between, dtype=np.bool_),
    )


def timelines(steps: Iterable[StepRange]) -> Mapping[int, Timeline]:
    """By thread."""
    grouped: dict[int, list[StepRange]] = {}
    for step in steps:
        grouped.setdefault(step.thread, []).append(step)
    return {thread: timeline(own) for thread, own in grouped.items()}
