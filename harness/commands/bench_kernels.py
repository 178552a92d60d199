"""Measure one kernel: base against a series at many shapes, or a kernel of this repository against its peers.

    nox -s bench_kernels -- --workload vllm/triton_decode --patched vllm/NAME     screen a series on one kernel
    nox -s bench_kernels -- --workload vllm/triton_decode --patched vllm/NAME --confirm    a verdict, ±0.5 % is equivalent
    nox -s bench_kernels -- --workload flashinfer/softmax --aa                    base against base: the noise of this GPU
    nox -s bench_kernels -- paged_decode                                          our kernel against the engines' kernels
    nox -s bench_kernels -- paged_decode --only bf16 --variants cuda fa3          some points, some kernels
    nox -s bench_kernels -- --list                                                workloads, kernels and their points

Every call is replayed from a CUDA graph: over inputs that rotate past three times the L2 (cold), and over one input (warm).
Outputs are poisoned before each replay and compared with a reference before and after; a time below what the memory allows is
void. Without a GPU, --list and --dry-run work, and --device cpu runs a workload that allows it by the wall clock.
Exit codes: 0 faster, equivalent or a screen; 10 slower; 11 inconclusive; 12 void; 1 error or named by --fail-on; 2 usage.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import NoReturn

from harness.arms.model import Arm
from harness.bench.request import add_arguments, request_of
from harness.context import Context
from harness.errors import UsageError
from harness.vocabulary import CacheState, Device, Engine, ExitCode, Mode, Slot
from harness.workloads.model import EngineWorkload


def configure(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, default_series="", default_device=Device.CUDA)
    peers = parser.add_argument_group("a kernel of this repository against its peers")
    peers.add_argument("kernel", nargs="?", help="a folder of kernels/ with a peers.py, e.g. paged_decode")
    peers.add_argument(
        "--variants", nargs="+", metavar="NAME", help="only these kernels of peers.py (default: all that are here)"
    )
    peers.add_argument("--only", nargs="+", metavar="TEXT", help="only points whose name holds one of these")
    peers.add_argument(
        "--python",
        nargs="+",
        metavar="[MODULE=]PATH",
        help="interpreters: PATH for all kernels, MODULE=PATH for those that need the module (default: the one that runs this)",
    )
    peers.add_argument(
        "--states", nargs="+", choices=[one.value for one in CacheState], help="cold, warm or both (default: both)"
    )
    peers.add_argument("--evidence", metavar="NAME", help="store the result as kernels/KERNEL/evidence/NAME.json and .md")
    peers.add_argument("--list", action="store_true", help="list workloads and kernels with their points, and stop")


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    if args.list:
        from harness.bench.listing import list_kernels  # noqa: PLC0415

        print(list_kernels(context.paths))
        return ExitCode.OK
    if args.kernel:
        from harness.bench.peers import PeerRequest, bench_peers  # noqa: PLC0415

        return bench_peers(context, PeerRequest.of(args))
    from harness.bench.command import run_bench  # noqa: PLC0415 - keeps --help quick

    request = request_of(args)
    engine = _engine(args, context)
    return run_bench(context, engine, request, _no_engine, default_workload="")


def _engine(args: argparse.Namespace, context: Context) -> Engine:
    """The workload's, the series', or with --resume the stored plan's."""
    if args.resume:
        from harness.experiments.store import read_experiment  # noqa: PLC0415

        return Engine(read_experiment(context.paths, args.resume)[0].workload.partition("/")[0])
    named = args.workload or args.patched
    if not named or not (args.patched or args.aa):
        raise UsageError(
            "say what is compared: --patched SERIES (with --workload NAME for another than its first), --workload NAME --aa "
            "for the noise, or the name of a kernel of this repository; --list shows what there is"
        )
    engine = named.partition("/")[0]
    if engine not in set(Engine):
        raise UsageError(f"{named!r} names no engine: give --workload with one of the names that --list shows")
    return Engine(engine)


def _no_engine(_context: Context, _arms: Mapping[Slot, Arm], workload: EngineWorkload, _mode: Mode) -> NoReturn:
    raise UsageError(
        f"workload {workload.engine}/{workload.name} runs an engine's script, not a kernel: use nox -s bench_{workload.engine}"
    )
