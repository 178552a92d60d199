"""Compilation while the clock runs: what the engines' logs say after they began to measure, and files new in the caches."""

from __future__ import annotations

import pytest

from harness.runs.compilation import CacheWatch, compilation_guard, window_guard
from harness.vocabulary import Engine, GuardState
from harness.workloads.scripts import scripts_of

VLLM = scripts_of(Engine.VLLM).measuring
SGLANG = scripts_of(Engine.SGLANG).measuring
BEGUN = "Bench iterations:   0%|          | 0/5 [00:00<?, ?it/s]"


@pytest.mark.parametrize(
    ("measuring", "text", "state"),
    [
        (VLLM, f"INFO torch.compile takes 20 s in total\nWarmup iterations: 100%\n{BEGUN}\nAvg latency", GuardState.PASSED),
        (VLLM, f"{BEGUN}\nWARNING Triton kernel JIT compilation during inference: _fwd_kernel.", GuardState.FIRED),
        (VLLM, f"{BEGUN}\nINFO Kernel JIT monitor activated, JIT compilations will be logged", GuardState.PASSED),
        (VLLM, "Processed prompts:   0%|  | 0/64\nINFO Autotuning kernel mm", GuardState.FIRED),
        (VLLM, "ended before it began", GuardState.ABSENT),
        (SGLANG, "Warmup ...\nninja: Entering directory\nBenchmark ...\nPrefill. latency: 0.4 s", GuardState.PASSED),
        (SGLANG, "Warmup ...\nBenchmark ...\nninja: Entering directory", GuardState.FIRED),
        (SGLANG, "\nWarmup...\n\nBenchmark...\nninja: Entering directory", GuardState.FIRED),
        (None, "anything", GuardState.ABSENT),
    ],
)
def test_only_what_is_compiled_after_the_script_began_to_measure_fires(tmp_path, measuring, text, state):
    log = tmp_path / "script.log"
    log.write_text(text)
    assert window_guard(log, measuring).state is state


def test_a_log_that_is_gone_leaves_the_window_unread(tmp_path):
    assert window_guard(tmp_path / "none", VLLM).state is GuardState.ABSENT


@pytest.fixture
def caches(tmp_path):
    """An arm's variables with two caches, one of which holds a compiled kernel already."""
    kernel = tmp_path / "triton" / "AB12" / "kernel.cubin"
    kernel.parent.mkdir(parents=True)
    kernel.write_text("old")
    return {"TRITON_CACHE_DIR": str(tmp_path / "triton"), "XDG_CACHE_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("file", "state"),
    [
        ("triton/CD34/kernel.cubin", GuardState.FIRED),
        ("xdg/tvm-ffi/module.so", GuardState.FIRED),
        ("triton/CD34/kernel.json", GuardState.PASSED),
        ("elsewhere/kernel.cubin", GuardState.PASSED),
    ],
)
def test_a_compiled_file_that_is_new_fires_even_if_the_log_is_silent(tmp_path, caches, file, state):
    log = tmp_path / "server.log"
    log.write_text("")
    watch = CacheWatch(caches)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("new")
    reading = compilation_guard(log, 0, watch)
    assert reading.state is state
    assert str(tmp_path) not in reading.detail


def test_caches_that_stay_as_they_were_pass(tmp_path, caches):
    log = tmp_path / "server.log"
    log.write_text("")
    assert compilation_guard(log, 0, CacheWatch(caches)).state is GuardState.PASSED
