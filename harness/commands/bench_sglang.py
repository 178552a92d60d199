"""Measure an SGLang series on a GPU: the real engine and its own benchmark scripts, base against patched.

    nox -s bench_sglang -- --patched sglang/NAME                       screen your series
    nox -s bench_sglang -- --patched sglang/NAME --confirm             a verdict for it
    nox -s bench_sglang -- --patched ~/src/sglang                      your own checkout against the pin
    nox -s bench_sglang -- --aa                                        base against base: the noise of this GPU
    nox -s bench_sglang -- --aa --workload sglang/llama-8b-one-batch   another workload (files of workloads/sglang)
    nox -s bench_sglang -- --aa --dry-run                              what would be run, and what it takes

Scripts: bench_serving against servers that stay up (live), bench_one_batch and bench_offline_throughput in fresh processes.
The radix cache is off, and a run in which prompts were cached, re-tokenised or ended early is void. SGLang runs on GPUs only:
without one, --dry-run works. A screen never says "faster"; --confirm gives the verdict.
Exit codes: 0 faster, equivalent or a screen; 10 slower; 11 inconclusive; 12 void; 1 error or named by --fail-on; 2 usage.
"""

from __future__ import annotations

import argparse

from harness.bench.request import add_arguments
from harness.context import Context
from harness.vocabulary import Device, Engine, ExitCode


def configure(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, default_series="", default_device=None)


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.bench.engines import Session, bench_engine  # noqa: PLC0415 - keeps --help quick

    return bench_engine(args, context, Session(Engine.SGLANG, {Device.CUDA: "sglang/llama-8b-serve"}))
