"""Command lines of vLLM's scripts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.workloads.model import Script
from harness.workloads.vllm_commands import script_command, server_command
from tests.workloads.test_vllm_results import SERVE

FOLDER = Path("/models/tiny-llama-0123")
OUT = Path("/runs/1")
WORKLOAD = replace(SERVE, server_arguments=("--enforce-eager",), arguments=("--num-prompts", "16"))


def test_server_of_a_synthetic_model_has_dummy_weights_of_one_seed_on_loopback():
    assert server_command(WORKLOAD, FOLDER, 8123) == (
        *("-m", "vllm.entrypoints.cli.main", "serve", "/models/tiny-llama-0123", "--load-format", "dummy"),
        *("--host", "127.0.0.1", "--port", "8123", "--seed", "0", "--enforce-eager"),
    )


def test_server_of_a_real_model_loads_its_weights():
    command = server_command(replace(WORKLOAD, model=str(FOLDER)), FOLDER, 8123)
    assert "--load-format" not in command
    assert command[3] == str(FOLDER)


def test_serve_script_asks_that_server_with_the_seed_of_the_pair():
    assert script_command(WORKLOAD, FOLDER, OUT, 7, 8123) == (
        *("-m", "vllm.entrypoints.cli.main"),
        *("bench", "serve", "--backend", "openai", "--model", "/models/tiny-llama-0123"),
        *("--host", "127.0.0.1", "--port", "8123", "--seed", "7", "--disable-tqdm", "--save-result", "--save-detailed"),
        *("--result-dir", "/runs/1", "--result-filename", "result.json", "--num-prompts", "16"),
    )


@pytest.mark.parametrize("script", [Script.LATENCY, Script.THROUGHPUT])
def test_offline_scripts_load_the_model_themselves(script):
    assert script_command(replace(WORKLOAD, script=script), FOLDER, OUT, 7) == (
        *("-m", "vllm.entrypoints.cli.main", "bench", script.value, "--model", "/models/tiny-llama-0123"),
        *("--load-format", "dummy", "--seed", "7", "--output-json", "/runs/1/result.json", "--num-prompts", "16"),
    )


def test_serve_script_without_a_server_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="port"):
        script_command(WORKLOAD, FOLDER, OUT, 7)
