"""Reads the CSV that FlashInfer's `benchmarks/flashinfer_benchmark.py` writes: one row for each case and backend.

Read from the script at v0.6.12: the header is its `full_output_columns`, times are medians in ms (`median_time`,
`std_time`). A case that fails is printed and skipped while the script ends well, so its metrics are then missing here.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.vocabulary import Outcome
from harness.workloads.model import EngineWorkload
from harness.workloads.results import ResultFileError, ScriptResult, read_text, result_of

__all__ = ["RESULT_LAYOUT", "read_result"]

# Recorded with evidence; raise it when a newer FlashInfer changes the columns below.
RESULT_LAYOUT = "flashinfer-0.6.12"
_REQUIRED = ("routine", "median_time", "backend", "case_tag")


def read_result(path: Path, workload: EngineWorkload) -> ScriptResult:
    """Metrics are named "CASE_TAG/BACKEND.COLUMN", or "BACKEND.COLUMN" for a case without tag; never raises."""
    try:
        rows = _rows(path)
    except ResultFileError as error:
        return ScriptResult(error.outcome, error.problem)
    table: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        tag = row["case_tag"] or ""
        name = f"{tag}/{row['backend']}" if tag not in {"", "None"} else str(row["backend"])
        if name in table:
            return ScriptResult(
                Outcome.BAD_RESULT, f"{path.name} has two rows for {name}; give each case a --case_tag of its own"
            )
        table[name] = {column: _value(cell) for column, cell in row.items()}
    return result_of(table, workload)


def _rows(path: Path) -> Sequence[Mapping[str, str]]:
    lines = list(csv.reader(io.StringIO(read_text(path))))
    header, body = lines[0], [line for line in lines[1:] if line]
    absent = [column for column in _REQUIRED if column not in header]
    if absent:
        raise ResultFileError(
            Outcome.BAD_RESULT, f"{path.name} lacks the columns {', '.join(map(repr, absent))} of layout {RESULT_LAYOUT}"
        )
    if not body:
        raise ResultFileError(Outcome.NO_RESULT, f"{path.name} has a header and no row: no case and backend was run")
    for number, line in enumerate(body, 2):
        if len(line) != len(header):
            # 0.6.12 joins the cells by commas without quoting.
            raise ResultFileError(
                Outcome.BAD_RESULT,
                f"line {number} of {path.name} has {len(line)} cells under {len(header)} columns; "
                "was there a comma in a tag or a command?",
            )
    return [dict(zip(header, line, strict=True)) for line in body]


def _value(cell: str) -> float | str | None:
    if cell in {"", "None"}:
        return None
    try:
        return float(cell)
    except ValueError:
        return cell
