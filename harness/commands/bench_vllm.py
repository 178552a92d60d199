"""Measure a vLLM series: the real engine and its own benchmark scripts, base against patched.

    nox -s bench_vllm                                       screen the default series on this machine
    nox -s bench_vllm -- --patched vllm/NAME --confirm      a verdict for your series
    nox -s bench_vllm -- --patched ~/src/vllm               your own checkout against the pin
    nox -s bench_vllm -- --aa --repeat 3                    base against base: the noise of this machine
    nox -s bench_vllm -- --confirm --dry-run                what would be run, and what it takes
    nox -s bench_vllm -- --resume ID                        go on after a kill; finished generations are kept

A screen takes minutes and never says "faster": it says whether a change is worth confirming. --confirm gives the verdict
faster, slower, equivalent, inconclusive or void. The first use installs vLLM's CPU environment (about 6 GB).
Exit codes: 0 faster, equivalent or a screen; 10 slower; 11 inconclusive; 12 void; 1 error or named by --fail-on; 2 usage.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from harness.arms.model import Arm
from harness.bench.request import add_arguments, request_of
from harness.context import Context
from harness.runs.model import Backend
from harness.vocabulary import Engine, ExitCode, Mode, Slot
from harness.workloads.model import EngineWorkload

DEFAULT_SERIES = "vllm/penalties-bin-counts"
DEFAULT_WORKLOAD = "vllm/penalties-serve"


def configure(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, default_series=DEFAULT_SERIES)


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.bench.command import run_bench  # noqa: PLC0415 - keeps --help quick

    return run_bench(context, Engine.VLLM, request_of(args), _backend, default_workload=DEFAULT_WORKLOAD)


def _backend(context: Context, arms: Mapping[Slot, Arm], workload: EngineWorkload, mode: Mode) -> Backend:
    from harness.arms.modules import check_modules  # noqa: PLC0415
    from harness.arms.variables import arm_environment  # noqa: PLC0415
    from harness.runs.engine_backend import EngineBackend  # noqa: PLC0415
    from harness.workloads.synthetic import make_model  # noqa: PLC0415

    return EngineBackend(
        arms=arms,
        workload=workload,
        mode=mode,
        model=make_model(context.paths, workload.model),
        progress=context.progress,
        environment_of=arm_environment,
        modules_of=check_modules,
        ports={},
    )
