"""Result files of vLLM's scripts, recorded with vLLM 0.24.0 on a CPU, and what is wrong with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.vocabulary import Device, Direction, Engine, Outcome
from harness.workloads.model import EngineWorkload, Metric, Script, TokenCounts
from harness.workloads.vllm_results import read_result

DATA = Path(__file__).with_name("data")
LOWER = Direction.LOWER

SERVE = EngineWorkload(
    engine=Engine.VLLM,
    name="example",
    why="for tests",
    script=Script.SERVE,
    devices=(Device.CPU,),
    model="tiny-llama",
    server_arguments=(),
    arguments=(),
    variables={},
    primary=Metric("mean_tpot_ms", "ms", LOWER),
    secondary=(Metric("output_throughput", "tokens/s", Direction.HIGHER), Metric("mean_ttft_ms", "ms", LOWER)),
    tokens=None,
    warmup_runs=0,
    start_timeout_s=1.0,
    run_timeout_s=1.0,
    links=(),
    digest="0",
)
LATENCY = replace(
    SERVE, script=Script.LATENCY, primary=Metric("percentiles.50", "s", LOWER), secondary=(Metric("avg_latency", "s", LOWER),)
)
THROUGHPUT = replace(
    SERVE, script=Script.THROUGHPUT, primary=Metric("tokens_per_second", "tokens/s", Direction.HIGHER), secondary=()
)


@pytest.fixture
def changed(tmp_path):
    """The recorded serve result with some fields changed; None removes one."""

    def make(**fields: object):
        data = json.loads((DATA / "vllm-0.24.0-serve.json").read_text())
        for key, value in fields.items():
            if value is KeyError:
                del data[key]
            else:
                data[key] = value
        path = tmp_path / "result.json"
        path.write_text(json.dumps(data))
        return read_result(path, SERVE)

    return make


def test_recorded_serve_result():
    result = read_result(DATA / "vllm-0.24.0-serve.json", SERVE)
    assert result.outcome is Outcome.OK
    assert result.metrics == pytest.approx(
        {"mean_tpot_ms": 102.2951103383508, "output_throughput": 141.97857848255148, "mean_ttft_ms": 2079.2745088125457}
    )
    assert not result.missing
    assert (result.completed, result.failed) == (16, 0)
    assert result.tokens == TokenCounts(input=1024, output=3072)
    assert result.error == ""
    assert len(result.outputs) == 64


def test_recorded_latency_result():
    result = read_result(DATA / "vllm-0.24.0-latency.json", LATENCY)
    data = json.loads((DATA / "vllm-0.24.0-latency.json").read_text())
    assert result.outcome is Outcome.OK
    assert result.metrics["percentiles.50"] == data["percentiles"]["50"]
    assert result.metrics["avg_latency"] == pytest.approx(sum(data["latencies"]) / len(data["latencies"]))
    assert result.tokens is None
    assert result.completed is None


def test_recorded_throughput_result():
    result = read_result(DATA / "vllm-0.24.0-throughput.json", THROUGHPUT)
    data = json.loads((DATA / "vllm-0.24.0-throughput.json").read_text())
    assert result.outcome is Outcome.OK
    assert result.tokens_total == 32 * (64 + 128)
    assert result.metrics["tokens_per_second"] == pytest.approx(data["total_num_tokens"] / data["elapsed_time"])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (KeyError, "is not in the result"),
        (None, "is null in the result"),
        (float("nan"), "is nan"),
        (float("inf"), "is inf"),
        (0.0, "is 0.0, which the script writes when nothing was measured"),
        (-1.0, "is -1.0"),
        ("33.1", "is '33.1', not a number"),
        (True, "is True, not a number"),
    ],
)
def test_a_primary_metric_that_is_no_number_makes_a_bad_result(changed, value, reason):
    result = changed(mean_tpot_ms=value)
    assert result.outcome is Outcome.BAD_RESULT
    assert result.problem.startswith("the primary metric 'mean_tpot_ms' ")
    assert reason in result.problem
    assert "mean_tpot_ms" not in result.metrics


def test_a_secondary_metric_that_is_no_number_is_missing_and_the_run_stays_good(changed):
    result = changed(mean_ttft_ms=float("nan"))
    assert result.outcome is Outcome.OK
    assert result.missing == {"mean_ttft_ms": "is nan"}
    assert set(result.metrics) == {"mean_tpot_ms", "output_throughput"}


@pytest.mark.parametrize("key", ["completed", "failed", "total_input_tokens", "total_output_tokens", "duration", "num_prompts"])
def test_a_result_of_another_layout_is_bad_and_names_the_key(changed, key):
    result = changed(**{key: KeyError})
    assert result.outcome is Outcome.BAD_RESULT
    assert f"lacks '{key}' of layout vllm-0.24" in result.problem


def test_the_first_error_of_a_failed_request_is_kept(changed):
    result = changed(failed=1, completed=15, errors=["", "Traceback\n  here\nConnectionResetError: gone", "later"])
    assert result.failed == 1
    assert result.error == "ConnectionResetError: gone"


def test_equal_outputs_have_equal_hashes_and_a_changed_token_another(changed):
    first = changed()
    assert changed().outputs == first.outputs
    assert changed(generated_texts=["w1"] * 16).outputs != first.outputs


@pytest.mark.parametrize(
    ("text", "outcome", "problem"),
    [
        (None, Outcome.NO_RESULT, "without writing result.json"),
        ("", Outcome.NO_RESULT, "left result.json empty"),
        ('{"completed": 16, "fai', Outcome.BAD_RESULT, "not readable JSON"),
        ("[1, 2]", Outcome.BAD_RESULT, "holds a list"),
        ("null", Outcome.NO_RESULT, "empty"),
    ],
)
def test_files_that_are_no_result(tmp_path, text, outcome, problem):
    path = tmp_path / "result.json"
    if text is not None:
        path.write_text(text)
    result = read_result(path, SERVE)
    assert result.outcome is outcome
    assert problem in result.problem
    assert not result.metrics


def test_bytes_that_are_no_text_are_bad(tmp_path):
    path = tmp_path / "result.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert read_result(path, SERVE).outcome is Outcome.BAD_RESULT
