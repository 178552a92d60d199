"""Reads the JSON that vLLM's own scripts write.

The layouts are those of vLLM 0.24.0 (`vllm/benchmarks/serve.py`, `latency.py`, `throughput.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.vocabulary import Outcome
from harness.workloads.model import EngineWorkload, Script, TokenCounts
from harness.workloads.results import ResultFileError, ScriptResult, count, first_error, outputs_digest, read_text, result_of

__all__ = ["RESULT_LAYOUT", "read_result"]

# Recorded with evidence; raise it when a newer vLLM changes the keys below.
RESULT_LAYOUT = "vllm-0.24"
_REQUIRED = {
    Script.SERVE: ("completed", "failed", "total_input_tokens", "total_output_tokens", "duration", "num_prompts"),
    Script.LATENCY: ("avg_latency", "latencies", "percentiles"),
    Script.THROUGHPUT: ("elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second"),
}


def read_result(path: Path, workload: EngineWorkload) -> ScriptResult:
    """Read a result file; never raises for what is in it."""
    try:
        data = json.loads(read_text(path))
    except ResultFileError as error:
        return ScriptResult(error.outcome, error.problem)
    except ValueError as error:
        return ScriptResult(Outcome.BAD_RESULT, f"{path.name} is not readable JSON: {error}")
    if data is None:
        return ScriptResult(Outcome.NO_RESULT, f"the script left {path.name} empty")
    if not isinstance(data, dict):
        return ScriptResult(Outcome.BAD_RESULT, f"{path.name} holds a {type(data).__name__}, not an object")
    absent = [key for key in _REQUIRED[workload.script] if key not in data]
    if absent:
        known = f"layout {RESULT_LAYOUT} of the {workload.script.value} script"
        return ScriptResult(Outcome.BAD_RESULT, f"{path.name} lacks {', '.join(map(repr, absent))} of {known}")
    tokens, total = _tokens(data, workload.script)
    return result_of(
        data,
        workload,
        completed=count(data.get("completed")),
        failed=count(data.get("failed")),
        tokens=tokens,
        tokens_total=total,
        error=first_error(data.get("errors")),
        outputs=outputs_digest(data.get("generated_texts")),
    )


def _tokens(data: Mapping[str, Any], script: Script) -> tuple[TokenCounts | None, int | None]:
    if script is Script.THROUGHPUT:
        return None, count(data.get("total_num_tokens"))
    read, written = count(data.get("total_input_tokens")), count(data.get("total_output_tokens"))
    if read is None or written is None:
        return None, None
    return TokenCounts(input=read, output=written), read + written
