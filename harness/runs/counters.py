"""What a server counted itself during a run: prompts that it read, tokens that it wrote, and prompts that it had cached."""

from __future__ import annotations

import math
from collections.abc import Mapping

from harness.runs.model import GuardReading
from harness.vocabulary import Guard, GuardState
from harness.workloads.model import EngineWorkload
from harness.workloads.results import ScriptResult
from harness.workloads.scripts import Counters

__all__ = ["cache_guard", "counted_guard", "difference", "read_counters"]


def read_counters(text: str) -> dict[str, float]:
    """Sums by name over all labels of Prometheus' text format; lines that are no samples are passed over.

    https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    totals: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        # NAME{LABELS} VALUE [TIMESTAMP]; labels may hold blanks and braces, a name holds neither.
        name = line.partition("{")[0].split(" ")[0]
        rest = line.rpartition("}")[2] if "{" in line else line[len(name) :]
        fields = rest.split()
        try:
            value = float(fields[0]) if fields else math.nan
        except ValueError:
            continue
        if name and math.isfinite(value):
            totals[name] = totals.get(name, 0.0) + value
    return totals


def difference(before: Mapping[str, float], after: Mapping[str, float], name: str) -> int | None:
    """By how much a counter rose; one that has not begun yet is 0. None when it was not there after the run either."""
    return round(after[name] - before.get(name, 0.0)) if name in after else None


def cache_guard(
    result: ScriptResult, counters: Counters | None, before: Mapping[str, float], after: Mapping[str, float]
) -> GuardReading:
    """No prompt token may come from the prefix cache: it is not computed, and passes for speed."""
    told = None if counters is None else difference(before, after, counters.cached)
    known = [one for one in (told, result.cached) if one is not None]
    # SGLang begins this counter with the first cached token, so a server that counts anything of ours has cached none.
    if told is None and counters is not None and counters.prompt and counters.prompt in after:
        known.append(0)
    if not known:
        return GuardReading(
            Guard.PREFIX_CACHE, GuardState.ABSENT, "neither the server nor the script says what came from the prefix cache"
        )
    cached = max(known)
    state = GuardState.PASSED if cached == 0 else GuardState.FIRED
    return GuardReading(Guard.PREFIX_CACHE, state, f"{cached} prompt tokens came from the prefix cache, limit 0")


def counted_guard(
    workload: EngineWorkload, counters: Counters | None, before: Mapping[str, float], after: Mapping[str, float]
) -> GuardReading | None:
    """What the server counted against what was asked; None where it does not count a run exactly."""
    if workload.tokens is None or counters is None or not counters.prompt:
        return None
    read, written = (difference(before, after, name) for name in (counters.prompt, counters.generated))
    if read is None or written is None:
        return None
    wanted = workload.tokens
    state = GuardState.PASSED if (read, written) == (wanted.input, wanted.output) else GuardState.FIRED
    return GuardReading(
        Guard.TOKENS,
        state,
        f"the server read {read} and wrote {written} tokens, asked for {wanted.input} and {wanted.output}",
    )
