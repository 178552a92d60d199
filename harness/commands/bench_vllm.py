"""Measure a vLLM series: the real engine and its own benchmark scripts, base against patched.

    nox -s bench_vllm                                       screen the default series on this machine
    nox -s bench_vllm -- --patched vllm/NAME --confirm      a verdict for your series
    nox -s bench_vllm -- --patched ~/src/vllm               your own checkout against the pin
    nox -s bench_vllm -- --aa --repeat 3                    base against base: the noise of this machine
    nox -s bench_vllm -- --confirm --dry-run                what would be run, and what it takes
    nox -s bench_vllm -- --resume ID                        go on after a kill; finished generations are kept

On a GPU, --device cuda and workloads like vllm/llama-8b-serve measure with dummy weights of Llama 3.1 8B; where nobody names a
device, it is cuda if there is a GPU and a workload of the series for it, and the session says which it took.
A screen takes minutes and never says "faster": it says whether a change is worth confirming. --confirm gives the verdict
faster, slower, equivalent, inconclusive or void. The first use installs vLLM's CPU environment (about 6 GB).
Exit codes: 0 faster, equivalent or a screen; 10 slower; 11 inconclusive; 12 void; 1 error or named by --fail-on; 2 usage.
"""

from __future__ import annotations

import argparse

from harness.bench.request import add_arguments
from harness.context import Context
from harness.vocabulary import Device, Engine, ExitCode

DEFAULT_SERIES = "vllm/penalties-bin-counts"
DEFAULT_WORKLOADS = {Device.CUDA: "vllm/llama-8b-serve", Device.CPU: "vllm/penalties-serve"}


def configure(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, default_series=DEFAULT_SERIES, default_device=None)


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.bench.engines import Session, bench_engine  # noqa: PLC0415 - keeps --help quick

    return bench_engine(args, context, Session(Engine.VLLM, DEFAULT_WORKLOADS))
