"""A workload: what is run. Here: one of an engine's own benchmark scripts with its arguments and a synthetic model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from harness.vocabulary import Device, Direction, Engine

__all__ = ["EngineWorkload", "Metric", "Script", "TokenCounts", "Workload"]


class Script(StrEnum):
    """The engines' own benchmark scripts, by what they do.

    serve: requests to a server (vLLM's `bench serve`, SGLang's `bench_serving`). latency: one batch in the script's own
    process (`bench latency`, `bench_one_batch`). throughput: many requests at once in the script's own process
    (`bench throughput`, `bench_offline_throughput`). routine: kernels (FlashInfer's `flashinfer_benchmark.py`).
    """

    SERVE = "serve"
    LATENCY = "latency"
    THROUGHPUT = "throughput"
    ROUTINE = "routine"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of the script's result file. `key` is its name there."""

    key: str
    unit: str
    direction: Direction


class Workload(Protocol):
    """What a plan needs of a workload, whatever its kind."""

    @property
    def engine(self) -> Engine: ...
    @property
    def name(self) -> str: ...
    @property
    def devices(self) -> tuple[Device, ...]: ...
    @property
    def primary(self) -> Metric: ...
    @property
    def secondary(self) -> tuple[Metric, ...]: ...
    @property
    def warmup_runs(self) -> int: ...
    @property
    def links(self) -> tuple[str, ...]: ...
    @property
    def digest(self) -> str:
        """sha256 of everything that decides what is run."""
        ...


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What a run must have processed, in tokens; a run with other counts is void (early stop, re-tokenised prompts)."""

    input: int
    output: int


@dataclass(frozen=True, slots=True)
class EngineWorkload:
    """workloads/<engine>/<name>.toml."""

    engine: Engine
    name: str
    why: str
    script: Script
    devices: tuple[Device, ...]
    # Name of workloads/models/<model>.toml, or an absolute path given by --model; empty for a routine, which has no model.
    model: str
    # Arguments of the server process (serve) and of the benchmark script.
    server_arguments: tuple[str, ...]
    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    primary: Metric
    secondary: tuple[Metric, ...]
    tokens: TokenCounts | None
    # Runs that are made and thrown away after a process starts, before the first that counts.
    warmup_runs: int
    start_timeout_s: float
    run_timeout_s: float
    # Public issues that this workload reproduces.
    links: tuple[str, ...]
    # sha256 of the file's content and the model's.
    digest: str

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (self.primary, *self.secondary)
