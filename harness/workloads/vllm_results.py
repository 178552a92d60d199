"""Reads the JSON that vLLM's own scripts write.

Missing is missing: a metric that is absent, null, NaN, infinite or 0 gives no number.
The layouts are those of vLLM 0.24.0 (`vllm/benchmarks/serve.py`, `latency.py`, `throughput.py`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.vocabulary import Outcome
from harness.workloads.model import EngineWorkload, Script, TokenCounts

__all__ = ["RESULT_LAYOUT", "ScriptResult", "read_result"]

# Recorded with evidence; raise it when a newer vLLM changes the keys below.
RESULT_LAYOUT = "vllm-0.24"
_REQUIRED = {
    Script.SERVE: ("completed", "failed", "total_input_tokens", "total_output_tokens", "duration", "num_prompts"),
    Script.LATENCY: ("avg_latency", "latencies", "percentiles"),
    Script.THROUGHPUT: ("elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second"),
}


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """What the file said. `outcome` is OK only when the primary metric is a positive finite number."""

    outcome: Outcome
    # What is wrong, for people; "" when nothing is.
    problem: str = ""
    # The workload's metrics that were there; `missing` has the others with the reason.
    metrics: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    # Requests; None where the script does not count them.
    completed: int | None = None
    failed: int | None = None
    # Tokens as the engine counted them: (input, output), or only their sum (throughput), or nothing (latency).
    tokens: TokenCounts | None = None
    tokens_total: int | None = None
    # The first error of a failed request.
    error: str = ""
    # sha256 of the generated texts in request order, to compare runs with; "" where the script does not keep them.
    outputs: str = ""


def read_result(path: Path, workload: EngineWorkload) -> ScriptResult:
    """Read a result file; never raises for what is in it."""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if text.strip() else None
    except FileNotFoundError:
        return ScriptResult(Outcome.NO_RESULT, f"the script ended without writing {path.name}")
    except (OSError, ValueError) as error:
        return ScriptResult(Outcome.BAD_RESULT, f"{path.name} is not readable JSON: {error}")
    if data is None:
        return ScriptResult(Outcome.NO_RESULT, f"the script left {path.name} empty")
    if not isinstance(data, dict):
        return ScriptResult(Outcome.BAD_RESULT, f"{path.name} holds a {type(data).__name__}, not an object")
    absent = [key for key in _REQUIRED[workload.script] if key not in data]
    if absent:
        known = f"layout {RESULT_LAYOUT} of the {workload.script.value} script"
        return ScriptResult(Outcome.BAD_RESULT, f"{path.name} lacks {', '.join(map(repr, absent))} of {known}")
    return _read(data, workload)


def _read(data: Mapping[str, Any], workload: EngineWorkload) -> ScriptResult:
    metrics: dict[str, float] = {}
    missing: dict[str, str] = {}
    for metric in workload.metrics:
        value, reason = _number(data, metric.key)
        if value is None:
            missing[metric.key] = reason
        else:
            metrics[metric.key] = value
    tokens, total = _tokens(data, workload.script)
    bad = workload.primary.key in missing
    return ScriptResult(
        outcome=Outcome.BAD_RESULT if bad else Outcome.OK,
        problem=f"the primary metric {workload.primary.key!r} {missing[workload.primary.key]}" if bad else "",
        metrics=metrics,
        missing=missing,
        completed=_count(data.get("completed")),
        failed=_count(data.get("failed")),
        tokens=tokens,
        tokens_total=total,
        error=_first_error(data.get("errors")),
        outputs=_outputs(data.get("generated_texts")),
    )


def _number(data: Mapping[str, Any], key: str) -> tuple[float | None, str]:
    """The value at a key; "percentiles.50" looks inside a table. Else None with the reason."""
    value: Any = data
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return None, "is not in the result"
        value = value[part]
    if value is None:
        return None, "is null in the result"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None, f"is {value!r}, not a number"
    if not math.isfinite(value):
        return None, f"is {value}"
    if value <= 0:
        # The serve script writes 0.0 for the mean of no measurements, and no time or rate is 0 or less.
        return None, f"is {value}, which the script writes when nothing was measured"
    return float(value), ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _tokens(data: Mapping[str, Any], script: Script) -> tuple[TokenCounts | None, int | None]:
    if script is Script.THROUGHPUT:
        return None, _count(data.get("total_num_tokens"))
    read, written = _count(data.get("total_input_tokens")), _count(data.get("total_output_tokens"))
    if read is None or written is None:
        return None, None
    return TokenCounts(input=read, output=written), read + written


def _first_error(errors: Any) -> str:
    if not isinstance(errors, list):
        return ""
    return next((one.strip().splitlines()[-1] for one in errors if isinstance(one, str) and one.strip()), "")


def _outputs(texts: Any) -> str:
    if not isinstance(texts, list) or not texts:
        return ""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
