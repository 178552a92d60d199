"""Measure a FlashInfer series on a GPU: FlashInfer's own benchmark script, else kernel workloads, base against patched.

    nox -s bench_flashinfer -- --patched flashinfer/NAME                          screen your series
    nox -s bench_flashinfer -- --patched flashinfer/NAME --confirm                a verdict for it
    nox -s bench_flashinfer -- --patched ~/src/flashinfer --mirror ~/src/flashinfer    your own checkout
    nox -s bench_flashinfer -- --aa --workload flashinfer/softmax                 base against base on one kernel workload

`benchmarks/flashinfer_benchmark.py` is in FlashInfer's git repository only. Where the tree comes from the archive on PyPI, the
session says so and runs the kernel workload flashinfer/decode instead. FlashInfer runs on GPUs only: without one, --dry-run
works. A screen never says "faster"; --confirm gives the verdict.
Exit codes: 0 faster, equivalent or a screen; 10 slower; 11 inconclusive; 12 void; 1 error or named by --fail-on; 2 usage.
"""

from __future__ import annotations

import argparse

from harness.bench.request import add_arguments
from harness.context import Context
from harness.vocabulary import Device, Engine, ExitCode

SCRIPT_WORKLOAD = "flashinfer/decode-routine"
KERNEL_WORKLOAD = "flashinfer/decode"


def configure(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, default_series="", default_device=None)


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.bench.engines import Session, bench_engine  # noqa: PLC0415 - keeps --help quick

    workload = SCRIPT_WORKLOAD if args.resume or args.workload else _default(args, context)
    return bench_engine(args, context, Session(Engine.FLASHINFER, {Device.CUDA: workload}))


def _default(args: argparse.Namespace, context: Context) -> str:
    """The script where the source has it, else the kernel workload, which is said."""
    from harness.bench.engines import require_gpu  # noqa: PLC0415

    if args.dry_run:
        # Nothing is fetched for a plan: a mirror has the script, and whether the network does is not known.
        if args.mirror:
            return SCRIPT_WORKLOAD
        context.progress.say(f"planned with the kernel workload {KERNEL_WORKLOAD}; --mirror DIR plans FlashInfer's own script")
        return KERNEL_WORKLOAD
    if not args.patched and not args.aa:
        # bench_engine says what is missing; nothing is made for that.
        return KERNEL_WORKLOAD
    require_gpu(context, Engine.FLASHINFER)

    from harness.pins.reader import read_pins  # noqa: PLC0415
    from harness.trees.worktrees import base_tree  # noqa: PLC0415
    from harness.workloads.flashinfer_commands import SCRIPT  # noqa: PLC0415

    pin = read_pins(context.paths.pins_file).find(Engine.FLASHINFER, args.pin)
    tree = base_tree(context.paths, pin, progress=context.progress, mirror=args.mirror)
    if (tree.path / SCRIPT).is_file():
        return SCRIPT_WORKLOAD
    context.progress.warn(
        f"{SCRIPT} is in FlashInfer's git repository only, and this source is the {tree.source}: running the kernel workload "
        f"{KERNEL_WORKLOAD} instead. A clone given with --mirror DIR has the script."
    )
    return KERNEL_WORKLOAD
