"""Result lines of SGLang's scripts.

serving: written by SGLang 0.5.14's own bench_serving against a stand-in server. one-batch-sweep and offline: made from reading
the writers of bench_one_batch and bench_offline_throughput at 0.5.14.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.vocabulary import Device, Direction, Engine, Outcome
from harness.workloads.model import Metric, Script, TokenCounts
from harness.workloads.sglang_results import read_result
from tests.workloads.test_vllm_results import SERVE as VLLM_SERVE

DATA = Path(__file__).with_name("data")
SERVE = replace(VLLM_SERVE, engine=Engine.SGLANG, devices=(Device.CUDA,))
BATCH = replace(
    SERVE,
    script=Script.LATENCY,
    primary=Metric("median_decode_latency", "s", Direction.LOWER),
    secondary=(Metric("prefill_latency", "s", Direction.LOWER),),
)
OFFLINE = replace(
    SERVE,
    script=Script.THROUGHPUT,
    primary=Metric("total_throughput", "tokens/s", Direction.HIGHER),
    secondary=(Metric("total_latency", "s", Direction.LOWER),),
)


@pytest.fixture
def lines(tmp_path):
    """A result file with the first recorded line changed; None removes a field."""

    def make(name: str, count: int = 1, **fields: object) -> Path:
        data = json.loads((DATA / name).read_text().splitlines()[0])
        for key, value in fields.items():
            if value is KeyError:
                del data[key]
            else:
                data[key] = value
        path = tmp_path / "result.jsonl"
        path.write_text((json.dumps(data) + "\n") * count)
        return path

    return make


SERVING = "sglang-0.5.14-serving.jsonl"
SWEEP = "sglang-0.5.14-one-batch-sweep.jsonl"
THROUGHPUT = "sglang-0.5.14-offline.jsonl"


def test_recorded_serving_result():
    result = read_result(DATA / SERVING, SERVE)
    assert result.outcome is Outcome.OK
    assert result.metrics == pytest.approx(
        {"mean_tpot_ms": 10.36791142853742, "output_throughput": 343.4607235560469, "mean_ttft_ms": 13.839993749570567}
    )
    assert (result.completed, result.failed, result.cached) == (4, 0, 0)
    assert result.tokens == TokenCounts(input=4 * 16, output=4 * 8)
    assert len(result.outputs) == 64


def test_failed_requests_are_those_sent_less_those_completed(lines):
    result = read_result(lines(SERVING, completed=3, errors=["", "Traceback\n  here\nValueError: gone", "", ""]), SERVE)
    assert result.failed == 1
    assert result.error == "ValueError: gone"


def test_cached_tokens_arrive_and_a_run_without_report_does_not_say(lines):
    report = json.loads((DATA / SERVING).read_text())["cache_report"]
    assert read_result(lines(SERVING, cache_report={**report, "total_cached_tokens": 48}), SERVE).cached == 48
    assert read_result(lines(SERVING, cache_report=KeyError), SERVE).cached is None


def test_one_shape_has_plain_names(lines):
    result = read_result(lines(SWEEP), BATCH)
    assert result.outcome is Outcome.OK
    assert result.metrics == {"median_decode_latency": 0.00561, "prefill_latency": 0.0193}
    assert result.tokens == TokenCounts(input=1024, output=64)


def test_a_sweep_has_a_name_for_each_shape():
    workload = replace(
        BATCH,
        primary=Metric("b32-i1024-o64.median_decode_latency", "s", Direction.LOWER),
        secondary=(Metric("b1-i1024-o64.prefill_latency", "s", Direction.LOWER),),
    )
    result = read_result(DATA / SWEEP, workload)
    assert result.metrics == {"b32-i1024-o64.median_decode_latency": 0.00873, "b1-i1024-o64.prefill_latency": 0.0193}
    assert result.tokens == TokenCounts(input=33 * 1024, output=33 * 64)


def test_a_shape_that_the_script_skipped_is_missing_and_not_another_shape():
    skipped = replace(BATCH, primary=Metric("b64-i1024-o64.median_decode_latency", "s", Direction.LOWER))
    result = read_result(DATA / SWEEP, skipped)
    assert result.outcome is Outcome.BAD_RESULT
    assert result.problem.endswith("is not in the result")
    assert read_result(DATA / SWEEP, BATCH).outcome is Outcome.BAD_RESULT, "two shapes have no plain name"


def test_lines_of_two_runs_are_not_one_result(lines):
    assert read_result(lines(SWEEP, 2), BATCH).outcome is Outcome.BAD_RESULT
    assert "holds 2 results" in read_result(lines(SERVING, 2), SERVE).problem


def test_offline_result(lines):
    result = read_result(lines(THROUGHPUT), OFFLINE)
    assert result.metrics == pytest.approx({"total_throughput": (65536 + 16384) / 9.5, "total_latency": 9.5})
    assert result.tokens == TokenCounts(input=65536, output=16384)


@pytest.mark.parametrize(
    ("name", "workload", "key"),
    [(SERVING, SERVE, "output_lens"), (SWEEP, BATCH, "input_len"), (THROUGHPUT, OFFLINE, "total_output_tokens")],
)
def test_a_line_of_another_layout_is_bad_and_names_the_key(lines, name, workload, key):
    result = read_result(lines(name, **{key: KeyError}), workload)
    assert result.outcome is Outcome.BAD_RESULT
    assert f"lacks '{key}' of layout sglang-0.5.14" in result.problem


@pytest.mark.parametrize(("value", "reason"), [(-1, "is -1"), (float("nan"), "is nan"), (0.0, "nothing was measured")])
def test_what_the_script_writes_before_it_measured_is_no_number(lines, value, reason):
    result = read_result(lines(THROUGHPUT, total_throughput=value), OFFLINE)
    assert result.outcome is Outcome.BAD_RESULT
    assert reason in result.problem


@pytest.mark.parametrize(
    ("text", "outcome", "problem"),
    [
        (None, Outcome.NO_RESULT, "without writing result.jsonl"),
        ("\n", Outcome.NO_RESULT, "left result.jsonl empty"),
        ('{"completed": 16, "fai', Outcome.BAD_RESULT, "line 1 of result.jsonl is not readable JSON"),
        ("[1, 2]\n", Outcome.BAD_RESULT, "holds a list"),
    ],
)
def test_files_that_are_no_result(tmp_path, text, outcome, problem):
    path = tmp_path / "result.jsonl"
    if text is not None:
        path.write_text(text)
    result = read_result(path, SERVE)
    assert result.outcome is outcome
    assert problem in result.problem
