"""Command lines of SGLang's and FlashInfer's scripts, and the workloads of this repository that run on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import RunError, WorkloadError
from harness.paths import Paths
from harness.trees.model import Tree
from harness.vocabulary import Device, Engine, Source, TreeOrigin
from harness.workloads.flashinfer_commands import SCRIPT
from harness.workloads.model import EngineWorkload, Script
from harness.workloads.reader import list_workloads, read_workload
from harness.workloads.scripts import ScriptCall, client_module, scripts_of

PATHS = Paths.of()
FOLDER = Path("/models/llama")
GPU = [name for name in list_workloads(PATHS) if Device.CUDA in read_workload(PATHS, name).devices]


def tree(engine: Engine, path: Path, root: str = "") -> Tree:
    return Tree(engine, "1", path, root, "0" * 40, "0" * 40, Source.ARCHIVE, TreeOrigin.BASE, "")


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")


@pytest.fixture
def call(tmp_path):
    """A call of a workload's script in a tree that holds these modules of SGLang."""

    def make(workload: EngineWorkload, *modules: str, port: int | None = None) -> ScriptCall:
        for module in modules:
            write((tmp_path / "python" / Path(*module.split("."))).with_suffix(".py"))
        trees = (tree(Engine.VLLM, tmp_path / "vllm"), tree(workload.engine, tmp_path, "python"))
        return ScriptCall(workload, trees, FOLDER, tmp_path / "run", 7, port)

    return make


def workload(name: str) -> EngineWorkload:
    return read_workload(PATHS, name)


def option(command: tuple[str, ...], name: str) -> str:
    return command[command.index(name) + 1]


def test_one_batch_of_the_pin_and_where_it_moved(call):
    sglang = scripts_of(Engine.SGLANG)
    old = sglang.script(call(workload("sglang/llama-8b-one-batch"), "sglang.bench_one_batch"))
    assert old[:2] == ("-m", "sglang.bench_one_batch")
    assert option(old, "--load-format") == "dummy"
    assert option(old, "--random-seed") == "7"
    assert option(old, "--result-filename").endswith("run/result.jsonl")
    new = sglang.script(call(workload("sglang/llama-8b-one-batch"), "sglang.benchmark.one_batch"))
    assert new[1] == "sglang.benchmark.one_batch"
    assert new[2:] == old[2:]


def test_a_script_that_moved_again_is_an_error_that_says_where_to_add_it(call):
    with pytest.raises(RunError, match=r"no module sglang.benchmark.one_batch or sglang.bench_one_batch .*sglang_commands.py"):
        scripts_of(Engine.SGLANG).script(call(workload("sglang/llama-8b-one-batch")))


def test_serving_sends_ids_of_exact_length_with_the_seed_of_the_pair(call):
    made = call(workload("sglang/llama-8b-serve"), "sglang.bench_serving", port=8123)
    command = scripts_of(Engine.SGLANG).script(made)
    assert client_module(Engine.SGLANG, made.trees) == command[1] == "sglang.bench_serving"
    assert option(command, "--dataset-name") == "random-ids"
    assert "--tokenize-prompt" in command
    assert option(command, "--random-range-ratio") == "1.0"
    assert option(command, "--seed") == "7"
    assert option(command, "--port") == "8123"
    # Its own warm-up request would be in the server's counts.
    assert option(command, "--warmup-requests") == "0"
    assert "--disable-ignore-eos" not in command
    with pytest.raises(ValueError, match="port"):
        scripts_of(Engine.SGLANG).script(replace(made, port=None))


def test_no_server_and_no_throughput_run_of_sglang_has_a_prefix_cache(call):
    assert "--disable-radix-cache" in scripts_of(Engine.SGLANG).server(workload("sglang/llama-8b-serve"), FOLDER, 1)
    made = call(workload("sglang/llama-8b-throughput"), "sglang.bench_offline_throughput")
    assert "--disable-radix-cache" in scripts_of(Engine.SGLANG).script(made)


def test_throughput_has_texts_of_the_synthetic_vocabulary_enough_for_every_prompt(call):
    made = call(workload("sglang/llama-8b-throughput"), "sglang.bench_offline_throughput")
    made.directory.mkdir()
    scripts_of(Engine.SGLANG).prepare(made)
    texts = json.loads(Path(option(scripts_of(Engine.SGLANG).script(made), "--dataset-path")).read_text())
    assert len(texts) == 64
    words = [word for one in texts for turn in one["conversations"] for word in turn["value"].split()]
    assert all(3 <= int(word[1:]) < 10_000 for word in words)
    scripts_of(Engine.SGLANG).prepare(replace(made, seed=8))
    assert json.loads((made.directory / "texts.json").read_text()) != texts, "another seed, other prompts"


def test_flashinfers_script_is_run_from_its_own_tree_and_finds_its_neighbours(call):
    made = call(workload("flashinfer/decode-routine"))
    write(made.trees[1].path / SCRIPT)
    command = scripts_of(Engine.FLASHINFER).script(made)
    assert command[0] == "-c"
    assert command[2] == str(made.trees[1].path / SCRIPT)
    assert option(command, "--output_path").endswith("run/result.csv")
    assert option(command, "--random_seed") == "7"


def test_flashinfers_script_runs_as_it_would_from_its_folder(call):
    made = call(workload("flashinfer/decode-routine"))
    made.directory.mkdir()
    script = made.trees[1].path / SCRIPT
    write(script)
    write(script.parent / "routines" / "__init__.py")
    script.write_text(
        "import sys, routines\n"
        "if __name__ == '__main__':\n"
        "    with open(sys.argv[sys.argv.index('--output_path') + 1], 'w') as stream:\n"
        "        stream.write(sys.argv[0])\n"
    )
    command = (sys.executable, *scripts_of(Engine.FLASHINFER).script(made))
    subprocess.run(command, check=True, env={**os.environ, "PYTHONSAFEPATH": "1"}, cwd=made.directory)
    assert (made.directory / "result.csv").read_text() == str(script)


def test_a_tree_without_flashinfers_script_says_what_to_do(call):
    with pytest.raises(RunError, match=r"git repository only.*--mirror DIR.*bench_kernels"):
        scripts_of(Engine.FLASHINFER).script(call(workload("flashinfer/decode-routine")))


@pytest.mark.parametrize("name", GPU)
def test_gpu_workloads_ask_for_lengths_that_give_their_token_counts(name):
    one = workload(name)
    if one.tokens is None:
        return
    given = one.arguments
    if one.script is Script.LATENCY:
        batch, read, wrote = (int(option(given, key)) for key in ("--batch-size", "--input-len", "--output-len"))
    else:
        keys = ("--num-prompts", "--random-input-len", "--random-output-len")
        batch, read, wrote = (int(option(given, key)) for key in keys)
    assert (one.tokens.input, one.tokens.output) == (batch * read, batch * wrote)


@pytest.mark.parametrize("name", [name for name in GPU if name != "flashinfer/decode-routine"])
def test_gpu_workloads_have_a_cache_of_fixed_size_that_holds_all_and_three_times_fits_on_one_gpu(name):
    one = workload(name)
    given = (*one.server_arguments, *one.arguments)
    per_token = 2 * 32 * 8 * 128 * 2  # keys and values, layers, heads, width, bytes in bfloat16
    if one.engine is Engine.VLLM:
        cache = int(option(given, "--kv-cache-memory-bytes"))
    else:
        cache = int(option(given, "--max-total-tokens")) * per_token
    if one.tokens is not None:
        assert (one.tokens.input + one.tokens.output) * per_token <= cache
    # 16 GB of weights and about 6 GB of graphs, workspaces and CUDA context beside it, of an H200's 150 GB.
    assert 3 * (cache + 22e9) < 150e9


def test_vllm_workloads_that_leave_the_prefix_cache_on_are_refused(tmp_path):
    source = (PATHS.workloads / "vllm" / "llama-8b-serve.toml").read_text()
    (tmp_path / "workloads" / "vllm").mkdir(parents=True)
    (tmp_path / "workloads" / "models").symlink_to(PATHS.workloads / "models")
    (tmp_path / "workloads" / "vllm" / "x.toml").write_text(source.replace('    "--no-enable-prefix-caching",\n', ""))
    with pytest.raises(WorkloadError, match=r"'server_arguments' lacks '--no-enable-prefix-caching'"):
        read_workload(Paths.of(root=tmp_path, state=tmp_path / "state"), "vllm/x")


def test_a_script_that_the_engine_does_not_have_is_refused(tmp_path):
    source = (PATHS.workloads / "vllm" / "llama-8b-latency.toml").read_text()
    (tmp_path / "workloads" / "flashinfer").mkdir(parents=True)
    (tmp_path / "workloads" / "flashinfer" / "x.toml").write_text(source)
    with pytest.raises(WorkloadError, match=r"'script' is 'latency', which flashinfer does not have; write routine"):
        read_workload(Paths.of(root=tmp_path, state=tmp_path / "state"), "flashinfer/x")
