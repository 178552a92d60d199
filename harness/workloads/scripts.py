"""How each engine's scripts are called and read: what a backend needs to know of an engine, in one table."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.trees.model import Tree
from harness.vocabulary import Engine
from harness.workloads import (
    flashinfer_commands,
    flashinfer_results,
    sglang_commands,
    sglang_results,
    vllm_commands,
    vllm_results,
)
from harness.workloads.model import EngineWorkload, Script
from harness.workloads.results import ScriptResult

__all__ = ["Counters", "EngineScripts", "ScriptCall", "client_module", "scripts_of"]


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """One call of a script. `trees` are the arm's, `model` is a folder; `port` is the server's, for serve only."""

    workload: EngineWorkload
    trees: tuple[Tree, ...]
    model: Path
    directory: Path
    seed: int
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """Names, at the server's /metrics, of what it counts from its start; "" where it does not, or not exactly a run's."""

    cached: str
    prompt: str = ""
    generated: str = ""


def _tree(engine: Engine, trees: tuple[Tree, ...]) -> Tree:
    """An arm may have trees of several engines; the script is the workload's engine's."""
    return next(tree for tree in trees if tree.engine is engine)


def _nothing(_call: ScriptCall) -> None:
    return


def _no_server(workload: EngineWorkload, _folder: Path, _port: int) -> tuple[str, ...]:
    raise ValueError(f"{workload.engine} has no server")


@dataclass(frozen=True, slots=True)
class EngineScripts:
    """The scripts of one engine."""

    engine: Engine
    # The script's file in the run's folder, and who reads it.
    result_name: str
    read: Callable[[Path, EngineWorkload], ScriptResult]
    # Arguments for the arm's Python.
    script: Callable[[ScriptCall], tuple[str, ...]]
    server: Callable[[EngineWorkload, Path, int], tuple[str, ...]] = _no_server
    # Writes what the script reads, before it starts.
    prepare: Callable[[ScriptCall], None] = _nothing
    # What the log says when warming up is over, for the scripts that run the engine themselves.
    measuring: re.Pattern[str] | None = None
    counters: Counters | None = None


def _vllm_script(call: ScriptCall) -> tuple[str, ...]:
    return vllm_commands.script_command(call.workload, call.model, call.directory, call.seed, call.port)


def _sglang_script(call: ScriptCall) -> tuple[str, ...]:
    return sglang_commands.script_command(
        call.workload, call.model, call.directory, call.seed, _tree(Engine.SGLANG, call.trees).import_path, port=call.port
    )


def _sglang_prepare(call: ScriptCall) -> None:
    sglang_commands.prepare_script(call.workload, call.directory, call.seed)


def _flashinfer_script(call: ScriptCall) -> tuple[str, ...]:
    return flashinfer_commands.script_command(
        call.workload, call.directory, call.seed, _tree(Engine.FLASHINFER, call.trees).path
    )


_ALL = {
    Engine.VLLM: EngineScripts(
        engine=Engine.VLLM,
        result_name=vllm_commands.RESULT_NAME,
        read=vllm_results.read_result,
        script=_vllm_script,
        server=vllm_commands.server_command,
        # The progress bars of the latency and the throughput script, at their beginning.
        measuring=re.compile(r"Bench iterations: +0%|Processed prompts: +0%"),
        # The client counts the tokens that the server reports for each request.
        counters=Counters(cached="vllm:prefix_cache_hits_total"),
    ),
    Engine.SGLANG: EngineScripts(
        engine=Engine.SGLANG,
        result_name=sglang_commands.RESULT_NAME,
        read=sglang_results.read_result,
        script=_sglang_script,
        server=sglang_commands.server_command,
        prepare=_sglang_prepare,
        measuring=re.compile(r"^Benchmark ?\.\.\.", re.MULTILINE),
        # The client reports the lengths that it asked for as input (sglang#15732), so the server's are compared.
        counters=Counters(
            cached="sglang:cached_tokens_total", prompt="sglang:prompt_tokens_total", generated="sglang:generation_tokens_total"
        ),
    ),
    Engine.FLASHINFER: EngineScripts(
        engine=Engine.FLASHINFER,
        result_name=flashinfer_commands.RESULT_NAME,
        read=flashinfer_results.read_result,
        script=_flashinfer_script,
    ),
}


def scripts_of(engine: Engine) -> EngineScripts:
    """The scripts of an engine."""
    return _ALL[engine]


def client_module(engine: Engine, trees: tuple[Tree, ...]) -> str:
    """The module of the serve script, which a live session keeps imported."""
    if engine is Engine.SGLANG:
        return sglang_commands.script_module(Script.SERVE, _tree(engine, trees).import_path)
    return vllm_commands.MODULE
