"""Command lines of SGLang's own scripts, as arguments for the arm's Python. Checked against SGLang 0.5.14."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

from harness.errors import RunError
from harness.files import write_atomically
from harness.workloads.model import EngineWorkload, Script
from harness.workloads.vllm_commands import LOOPBACK

__all__ = ["RESULT_NAME", "prepare_script", "script_command", "script_module", "server_command"]

# The script's JSON lines in the run's folder, and the texts that the throughput script draws its prompts from.
RESULT_NAME = "result.jsonl"
TEXTS_NAME = "texts.json"
# Newest first: the scripts moved into sglang.benchmark after 0.5.14, which has sglang.benchmark but not yet these modules.
_MODULES = {
    Script.LATENCY: ("sglang.benchmark.one_batch", "sglang.bench_one_batch"),
    Script.THROUGHPUT: ("sglang.benchmark.offline_throughput", "sglang.bench_offline_throughput"),
    Script.SERVE: ("sglang.benchmark.serving", "sglang.bench_serving"),
}
_WORDS = 64
# Ids that every synthetic model has as words, behind the special ones.
_FIRST_WORD, _LAST_WORD = 3, 9_999
# The script warms up with that many prompts of its own.
_WARMUP_PROMPTS = 16


def script_module(script: Script, import_path: Path) -> str:
    """The module that holds the script in this tree. Raises RunError when the tree has it at none of the known places."""
    for module in _MODULES[script]:
        if (import_path / Path(*module.split("."))).with_suffix(".py").is_file():
            return module
    raise RunError(
        f"{import_path} has no module {' or '.join(_MODULES[script])} for the {script.value} script; "
        "SGLang has moved it again: add its new name to harness/workloads/sglang_commands.py"
    )


def _model(workload: EngineWorkload, folder: Path, seed: int) -> tuple[str, ...]:
    """The tokenizer is loaded even for prompts of ids. Only a synthetic model has no weights to load."""
    load = () if Path(workload.model).is_absolute() else ("--load-format", "dummy")
    return ("--model-path", str(folder), *load, "--random-seed", str(seed))


def server_command(workload: EngineWorkload, folder: Path, port: int) -> tuple[str, ...]:
    """`sglang.launch_server` on loopback, without prefix cache; its counters tell what it really read and wrote."""
    return (
        *("-m", "sglang.launch_server", *_model(workload, folder, 0), "--host", LOOPBACK, "--port", str(port)),
        *("--disable-radix-cache", "--enable-metrics", *workload.server_arguments),
    )


def script_command(
    workload: EngineWorkload, folder: Path, directory: Path, seed: int, import_path: Path, *, port: int | None = None
) -> tuple[str, ...]:
    """`bench_serving`, `bench_one_batch` or `bench_offline_throughput`, writing directory/result.jsonl.

    `seed` chooses the prompts. `port` is that of the server, for serve only.
    """
    module = script_module(workload.script, import_path)
    result = str(directory / RESULT_NAME)
    if workload.script is Script.SERVE:
        if port is None:
            raise ValueError("the serve script needs the port of a server")
        # Its own warm-up request would be counted by the server too, and runs have warm-up runs.
        return (
            *("-m", module, "--backend", "sglang", "--model", str(folder), "--tokenizer", str(folder)),
            *("--host", LOOPBACK, "--port", str(port), "--seed", str(seed), "--warmup-requests", "0", "--disable-tqdm"),
            *("--cache-report", "--output-details", "--output-file", result, *workload.arguments),
        )
    if workload.script is Script.LATENCY:
        # The engine's seed is NumPy's too, which draws the prompts. There is no prefix cache below the scheduler.
        return ("-m", module, *_model(workload, folder, seed), "--result-filename", result, *workload.arguments)
    # The script takes two seeds: the prompts' (--seed) and the engine's.
    return (
        *("-m", module, *_model(workload, folder, 0), "--disable-radix-cache", "--seed", str(seed)),
        *("--dataset-path", str(directory / TEXTS_NAME), "--result-filename", result, *workload.arguments),
    )


def prepare_script(workload: EngineWorkload, directory: Path, seed: int) -> None:
    """What the throughput script would download: texts in ShareGPT's form, of words that the synthetic tokenizer has.

    It cuts or repeats them to the lengths that it is told. Raises RunError when they cannot be written.
    """
    if workload.script is not Script.THROUGHPUT:
        return
    draw = random.Random(seed)  # noqa: S311  prompts, not secrets
    prompts = max(_value(workload.arguments, "--num-prompts"), _WARMUP_PROMPTS)

    def text() -> str:
        return " ".join(f"w{draw.randint(_FIRST_WORD, _LAST_WORD)}" for _ in range(_WORDS))

    talks = [{"conversations": [{"value": text()}, {"value": text()}]} for _ in range(prompts)]
    write_atomically(directory / TEXTS_NAME, json.dumps(talks), RunError)


def _value(arguments: tuple[str, ...], option: str) -> int:
    """The whole number after an option; 0 where it is not given."""
    return next((int(value) for name, value in itertools.pairwise(arguments) if name == option), 0)
