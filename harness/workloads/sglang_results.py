"""Reads the JSON lines that SGLang's own scripts append to their result file.

The layouts are those of SGLang 0.5.14 (`bench_one_batch.py`, `bench_offline_throughput.py`, `bench_serving.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.vocabulary import Outcome
from harness.workloads.model import EngineWorkload, Script, TokenCounts
from harness.workloads.results import ResultFileError, ScriptResult, count, first_error, outputs_digest, read_text, result_of

__all__ = ["RESULT_LAYOUT", "read_result"]

# Recorded with evidence; raise it when a newer SGLang changes the keys below.
RESULT_LAYOUT = "sglang-0.5.14"
_SHAPE = ("batch_size", "input_len", "output_len")
_REQUIRED = {
    Script.SERVE: ("completed", "total_input_tokens", "total_output_tokens", "duration", "output_lens", "errors"),
    Script.LATENCY: (*_SHAPE, "prefill_latency", "total_latency"),
    Script.THROUGHPUT: ("successful_requests", "total_latency", "total_input_tokens", "total_output_tokens"),
}


def read_result(path: Path, workload: EngineWorkload) -> ScriptResult:
    """Read a result file; never raises for what is in it."""
    try:
        rows = _rows(path, workload.script)
    except ResultFileError as error:
        return ScriptResult(error.outcome, error.problem)
    if workload.script is Script.LATENCY:
        return _one_batch(rows, workload)
    if len(rows) != 1:
        return ScriptResult(Outcome.BAD_RESULT, f"{path.name} holds {len(rows)} results of one run, not 1")
    return _serving(rows[0], workload) if workload.script is Script.SERVE else _offline(rows[0], workload)


def _rows(path: Path, script: Script) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ResultFileError(Outcome.BAD_RESULT, f"line {number} of {path.name} is not readable JSON: {error}") from error
        if not isinstance(row, dict):
            raise ResultFileError(
                Outcome.BAD_RESULT, f"line {number} of {path.name} holds a {type(row).__name__}, not an object"
            )
        absent = [key for key in _REQUIRED[script] if key not in row]
        if absent:
            known = f"layout {RESULT_LAYOUT} of the {script.value} script"
            raise ResultFileError(
                Outcome.BAD_RESULT, f"line {number} of {path.name} lacks {', '.join(map(repr, absent))} of {known}"
            )
        rows.append(row)
    return rows


def _one_batch(rows: Sequence[Mapping[str, Any]], workload: EngineWorkload) -> ScriptResult:
    """One row for each shape of the sweep: "b1-i32768-o64.median_decode_latency", and plain keys where there is one shape.

    The script leaves out a shape that does not fit into the cache, and ends well: its metrics are then missing here.
    """
    table: dict[str, Any] = {_shape(row): row for row in rows}
    if len(table) != len(rows):
        return ScriptResult(Outcome.BAD_RESULT, "the result file holds one shape more than once, so it is not of one run")
    if len(rows) == 1:
        table |= rows[0]
    read = [(count(row["batch_size"]), count(row["input_len"]), count(row["output_len"])) for row in rows]
    known = [
        (batch, there, made) for batch, there, made in read if batch is not None and there is not None and made is not None
    ]
    # The script decodes exactly as many steps as it was told, whatever comes out.
    tokens = TokenCounts(sum(b * i for b, i, _ in known), sum(b * o for b, _, o in known)) if len(known) == len(rows) else None
    return result_of(table, workload, tokens=tokens)


def _shape(row: Mapping[str, Any]) -> str:
    return f"b{row['batch_size']}-i{row['input_len']}-o{row['output_len']}"


def _offline(row: Mapping[str, Any], workload: EngineWorkload) -> ScriptResult:
    # "successful_requests" is the number of requests that were sent: a failed one ends the script.
    return result_of(row, workload, tokens=_tokens(row))


def _serving(row: Mapping[str, Any], workload: EngineWorkload) -> ScriptResult:
    completed = count(row["completed"])
    sent = len(row["output_lens"]) if isinstance(row["output_lens"], list) else None
    report = row.get("cache_report")
    return result_of(
        row,
        workload,
        completed=completed,
        failed=None if completed is None or sent is None else sent - completed,
        tokens=_tokens(row),
        cached=count(report.get("total_cached_tokens")) if isinstance(report, dict) else None,
        error=first_error(row["errors"]),
        outputs=outputs_digest(row.get("generated_texts")),
    )


def _tokens(row: Mapping[str, Any]) -> TokenCounts | None:
    read, written = count(row["total_input_tokens"]), count(row["total_output_tokens"])
    return None if read is None or written is None else TokenCounts(input=read, output=written)
