"""Workload files: every missing, malformed and unknown field has a message that names it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.errors import UnknownWorkloadError, WorkloadError
from harness.paths import Paths
from harness.vocabulary import Device, Direction, Engine
from harness.workloads.model import Metric, Script, TokenCounts
from harness.workloads.reader import list_workloads, read_workload

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = "vllm/example"
TEXT = """
schema = 1
why = "an example"
script = "serve"
devices = ["cpu", "cuda"]
model = "tiny-llama"
links = ["https://example.org/1"]
server_arguments = ["--max-model-len", "512", "--no-enable-prefix-caching"]
arguments = ["--num-prompts", "16"]
warmup_runs = 1
start_timeout_s = 300
run_timeout_s = 12.5

[variables]
VLLM_USE_V2_MODEL_RUNNER = "0"

[tokens]
input = 1024
output = 3072

[primary]
key = "mean_tpot_ms"
unit = "ms"
direction = "lower"

[[secondary]]
key = "output_throughput"
unit = "tokens/s"
direction = "higher"
"""


@pytest.fixture
def paths(tmp_path):
    shutil.copytree(REPOSITORY / "workloads" / "models", tmp_path / "workloads" / "models")
    return Paths.of(root=tmp_path, state=tmp_path / "state")


@pytest.fixture
def read(paths):
    def written(text: str = TEXT, model: Path | str | None = None):
        file = paths.workloads / "vllm" / "example.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return read_workload(paths, NAME, model)

    return written


def test_every_field_arrives(read):
    workload = read()
    assert workload.name == "example"
    assert workload.script is Script.SERVE
    assert workload.devices == (Device.CPU, Device.CUDA)
    assert workload.server_arguments == ("--max-model-len", "512", "--no-enable-prefix-caching")
    assert workload.arguments == ("--num-prompts", "16")
    assert workload.variables == {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    assert workload.tokens == TokenCounts(input=1024, output=3072)
    assert workload.metrics == (
        Metric("mean_tpot_ms", "ms", Direction.LOWER),
        Metric("output_throughput", "tokens/s", Direction.HIGHER),
    )
    assert (workload.warmup_runs, workload.start_timeout_s, workload.run_timeout_s) == (1, 300.0, 12.5)
    assert workload.links == ("https://example.org/1",)


def test_a_vllm_workload_for_a_gpu_names_its_model_runner(read):
    for text in (TEXT.replace('VLLM_USE_V2_MODEL_RUNNER = "0"', ""), TEXT.replace('RUNNER = "0"', 'RUNNER = "2"')):
        with pytest.raises(WorkloadError, match=r"example\.toml: table 'variables' lacks VLLM_USE_V2_MODEL_RUNNER"):
            read(text)
    cpu = TEXT.replace('"cpu", "cuda"', '"cpu"').replace('VLLM_USE_V2_MODEL_RUNNER = "0"', "")
    assert read(cpu).variables == {}, "on a CPU there is one"


@pytest.mark.parametrize("line", [line for line in TEXT.splitlines() if " = " in line and not line.startswith("VLLM")])
def test_each_missing_field_is_named(read, line):
    key = line.split(" = ")[0]
    count = TEXT.splitlines().index(line)
    lines = TEXT.splitlines()
    del lines[count]
    with pytest.raises(WorkloadError, match=rf"example\.toml: field '[a-z0-9.\[\]]*{key}' is missing; it must be "):
        read("\n".join(lines))


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('why = "an example"', "why = 3", "why"),
        ('why = "an example"', 'why = " "', "why"),
        ('script = "serve"', 'script = "server"', "script"),
        ('devices = ["cpu", "cuda"]', 'devices = ["tpu"]', "devices"),
        ('devices = ["cpu", "cuda"]', "devices = []", "devices"),
        ('model = "tiny-llama"', "model = []", "model"),
        ('links = ["https://example.org/1"]', 'links = "https://example.org/1"', "links"),
        ('arguments = ["--num-prompts", "16"]', 'arguments = ["--num-prompts", 16]', "arguments"),
        ("warmup_runs = 1", "warmup_runs = -1", "warmup_runs"),
        ("warmup_runs = 1", "warmup_runs = true", "warmup_runs"),
        ("start_timeout_s = 300", "start_timeout_s = 0", "start_timeout_s"),
        ("run_timeout_s = 12.5", "run_timeout_s = inf", "run_timeout_s"),
        ("run_timeout_s = 12.5", "run_timeout_s = nan", "run_timeout_s"),
        ('RUNNER = "0"', "RUNNER = 0", "variables"),
        ("input = 1024", "input = 0", "tokens.input"),
        ('direction = "lower"', 'direction = "down"', "primary.direction"),
        ('direction = "higher"', "direction = 1", r"secondary\[0\].direction"),
    ],
)
def test_each_malformed_field_is_named_with_its_value(read, old, new, field):
    assert old in TEXT
    with pytest.raises(WorkloadError, match=rf"field '{field}' is malformed: got .*, it must be "):
        read(TEXT.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("warmup_runs = 1", "warmup_runs = 1\nwarmup_run = 1", "unknown field 'warmup_run'.*Did you mean 'warmup_runs'"),
        ("input = 1024", "input = 1024\ninputs = 3", "unknown field 'tokens.inputs'"),
        ("schema = 1", "schema = 9", "field 'schema' is 9, this checkout reads 1"),
        ("schema = 1", "schema = [", "is not valid TOML"),
        ('key = "output_throughput"', 'key = "mean_tpot_ms"', "metric 'mean_tpot_ms' is listed more than once"),
        ('script = "serve"', 'script = "latency"', "'server_arguments' has no meaning for script 'latency'"),
        ('model = "tiny-llama"', 'model = "tiny-lama"', "no synthetic model 'tiny-lama'.*Did you mean 'tiny-llama'"),
    ],
)
def test_other_mistakes(read, old, new, message):
    with pytest.raises(WorkloadError, match=message):
        read(TEXT.replace(old, new, 1))


def test_an_unknown_workload_is_answered_with_the_nearest(read, paths):
    read()
    with pytest.raises(UnknownWorkloadError, match=r"no workload 'vllm/examples'.*Did you mean 'vllm/example'"):
        read_workload(paths, "vllm/examples")


def test_no_path_can_be_given_for_a_name(paths):
    with pytest.raises(WorkloadError, match=r"no workload '\.\./vllm/example'"):
        read_workload(paths, "../vllm/example")


def test_a_real_model_is_taken_by_its_path(read, tmp_path):
    folder = tmp_path / "real"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert read(model=folder).model == str(folder)


def test_another_synthetic_model_is_taken_by_its_name(read):
    assert read(model="qwen3-8b").model == "qwen3-8b"


@pytest.mark.parametrize(("make", "message"), [(True, "has no config.json"), (False, "does not exist")])
def test_a_folder_that_is_no_model_is_refused(read, tmp_path, make, message):
    folder = tmp_path / "real"
    if make:
        folder.mkdir()
    with pytest.raises(WorkloadError, match=message):
        read(model=folder)


def test_the_digest_follows_the_file_and_the_model(read, paths, tmp_path):
    first = read().digest
    assert read().digest == first
    assert read(TEXT + "\n# a comment\n").digest != first
    assert read(model="qwen3-8b").digest != first
    model = paths.workloads / "models" / "tiny-llama.toml"
    model.write_text(model.read_text().replace("num_hidden_layers = 4", "num_hidden_layers = 5"))
    assert read().digest != first


def test_the_digest_of_a_real_model_follows_its_files(read, tmp_path):
    folder = tmp_path / "real"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    first = read(model=folder).digest
    (folder / "model.safetensors").write_bytes(b"weights")
    assert read(model=folder).digest != first


def test_every_workload_of_the_checkout_can_be_read():
    paths = Paths.of()
    assert "vllm/penalties-serve" in list_workloads(paths)
    for one in list_workloads(paths):
        workload = read_workload(paths, one)
        assert "--enable-prefix-caching" not in (*workload.arguments, *workload.server_arguments)
        if workload.script is Script.SERVE and workload.engine is Engine.VLLM:
            assert "--no-enable-prefix-caching" in workload.server_arguments


def test_token_counts_of_the_default_workload_are_what_it_asks_for():
    for name in ("vllm/penalties-serve", "vllm/penalties-serve-short", "vllm/decode-throughput"):
        workload = read_workload(Paths.of(), name)
        value = dict(zip(workload.arguments, workload.arguments[1:], strict=False))
        prompts = int(value["--num-prompts"])
        assert workload.tokens == TokenCounts(
            input=prompts * int(value["--random-input-len"]), output=prompts * int(value["--random-output-len"])
        )
