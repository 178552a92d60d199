"""What servers count: Prometheus' text format, prompts from the prefix cache, prompts of another length than asked."""

from __future__ import annotations

import pytest

from harness.runs.counters import cache_guard, counted_guard, read_counters
from harness.vocabulary import GuardState, Outcome
from harness.workloads.results import ScriptResult
from harness.workloads.scripts import Counters
from tests.runs.fake_bench import WORKLOAD

VLLM = Counters(cached="vllm:prefix_cache_hits_total")
SGLANG = Counters(
    cached="sglang:cached_tokens_total", prompt="sglang:prompt_tokens_total", generated="sglang:generation_tokens_total"
)
OK = ScriptResult(Outcome.OK)
# Lines as vLLM 0.24.0 writes them; a label may hold blanks, braces and numbers.
TEXT = """
# HELP vllm:prefix_cache_hits_total Prefix cache hits, in terms of number of cached tokens.
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="a {b} 7"} 96.0
vllm:prefix_cache_hits_total{engine="1",model_name="a {b} 7"} 4.0
vllm:prefix_cache_hits_created{engine="0",model_name="a"} 1.7647e+09
process_cpu_seconds_total 12.5 1764820000000
broken{
vllm:nan_total{engine="0"} NaN
"""


def test_counters_are_summed_over_their_labels_and_broken_lines_are_passed_over():
    counters = read_counters(TEXT)
    assert counters["vllm:prefix_cache_hits_total"] == 100.0
    assert counters["process_cpu_seconds_total"] == 12.5
    assert "vllm:nan_total" not in counters
    assert read_counters("") == {}


@pytest.mark.parametrize(
    ("counters", "cached", "before", "after", "state"),
    [
        (VLLM, None, {VLLM.cached: 100}, {VLLM.cached: 100}, GuardState.PASSED),
        (VLLM, None, {VLLM.cached: 100}, {VLLM.cached: 116}, GuardState.FIRED),
        (VLLM, None, {}, {VLLM.cached: 16}, GuardState.FIRED),
        (VLLM, None, {}, {}, GuardState.ABSENT),
        # SGLang has no such line before the first cached token; its script reports what each answer said.
        (SGLANG, None, {}, {SGLANG.prompt: 40}, GuardState.PASSED),
        (SGLANG, 0, {}, {SGLANG.prompt: 40, SGLANG.cached: 8}, GuardState.FIRED),
        (SGLANG, 8, {}, {SGLANG.prompt: 40}, GuardState.FIRED),
        (SGLANG, 0, {}, {}, GuardState.PASSED),
        (None, None, {}, {}, GuardState.ABSENT),
    ],
)
def test_a_prompt_from_the_prefix_cache_fires_whoever_tells(counters, cached, before, after, state):
    result = ScriptResult(Outcome.OK, cached=cached)
    assert cache_guard(result, counters, before, after).state is state


@pytest.mark.parametrize(
    ("read", "wrote", "state"),
    [(40, 80, GuardState.PASSED), (41, 80, GuardState.FIRED), (40, 79, GuardState.FIRED)],
)
def test_the_server_must_have_read_and_written_what_was_asked(read, wrote, state):
    before = {SGLANG.prompt: 1000.0, SGLANG.generated: 2000.0}
    after = {SGLANG.prompt: 1000.0 + read, SGLANG.generated: 2000.0 + wrote}
    reading = counted_guard(WORKLOAD, SGLANG, before, after)
    assert reading is not None
    assert reading.state is state
    assert f"the server read {read} and wrote {wrote} tokens" in reading.detail


def test_what_the_server_does_not_count_exactly_is_left_to_the_script():
    assert counted_guard(WORKLOAD, VLLM, {}, {VLLM.cached: 0}) is None
    assert counted_guard(WORKLOAD, SGLANG, {}, {}) is None
    assert counted_guard(WORKLOAD, None, {}, {}) is None
