"""What a result file of an engine's script said, whatever its format, and the rules that all readers share.

Missing is missing: a metric that is absent, null, NaN, infinite or 0 gives no number.
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
from harness.workloads.model import EngineWorkload, TokenCounts

__all__ = ["ResultFileError", "ScriptResult", "count", "first_error", "outputs_digest", "read_text", "result_of"]


class ResultFileError(Exception):
    """A result file that gives no result; never leaves harness.workloads."""

    def __init__(self, outcome: Outcome, problem: str) -> None:
        super().__init__(problem)
        self.outcome = outcome
        self.problem = problem


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
    # Prompt tokens that the engine took from its prefix cache; None where the script does not say.
    cached: int | None = None
    # The first error of a failed request.
    error: str = ""
    # sha256 of the generated texts in request order, to compare runs with; "" where the script does not keep them.
    outputs: str = ""


def read_text(path: Path) -> str:
    """The file's text. Raises ResultFileError for a file that is not there, is empty or is no text."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ResultFileError(Outcome.NO_RESULT, f"the script ended without writing {path.name}") from None
    except (OSError, ValueError) as error:
        raise ResultFileError(Outcome.BAD_RESULT, f"{path.name} cannot be read: {error}") from error
    if not text.strip():
        raise ResultFileError(Outcome.NO_RESULT, f"the script left {path.name} empty")
    return text


def result_of(data: Mapping[str, Any], workload: EngineWorkload, **facts: Any) -> ScriptResult:
    """The workload's metrics out of a table, and the facts beside them (fields of ScriptResult)."""
    metrics: dict[str, float] = {}
    missing: dict[str, str] = {}
    for metric in workload.metrics:
        value, reason = _number(data, metric.key)
        if value is None:
            missing[metric.key] = reason
        else:
            metrics[metric.key] = value
    bad = workload.primary.key in missing
    return ScriptResult(
        outcome=Outcome.BAD_RESULT if bad else Outcome.OK,
        problem=f"the primary metric {workload.primary.key!r} {missing[workload.primary.key]}" if bad else "",
        metrics=metrics,
        missing=missing,
        **facts,
    )


def _number(data: Mapping[str, Any], key: str) -> tuple[float | None, str]:
    """The value at a key; "percentiles.50" looks inside a table. Else None with the reason."""
    value: Any = data
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None, "is not in the result"
        value = value[part]
    if value is None:
        return None, "is null in the result"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None, f"is {value!r}, not a number"
    if not math.isfinite(value):
        return None, f"is {value}"
    if value <= 0:
        # The serve scripts write 0.0 for the mean of no measurements, and no time or rate is 0 or less.
        return None, f"is {value}, which the script writes when nothing was measured"
    return float(value), ""


def count(value: object) -> int | None:
    """A number of requests or tokens, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def first_error(errors: object) -> str:
    """The last line (what was raised) of the first error in a list of tracebacks."""
    if not isinstance(errors, list):
        return ""
    return next((one.strip().splitlines()[-1] for one in errors if isinstance(one, str) and one.strip()), "")


def outputs_digest(texts: object) -> str:
    """sha256 of the texts in request order; "" where there are none."""
    if not isinstance(texts, list) or not texts:
        return ""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
