"""Measure what this device does to a metric when nothing changed: base against base, many times.

    nox -s calibrate -- --workload vllm/triton_decode                    40 A/A experiments of a kernel
    nox -s calibrate -- --workload vllm/triton_decode --points bf16-32/8-b64-4096 --minutes 8
    nox -s calibrate -- --workload vllm/llama-8b-serve --experiments 3   of a whole engine (about 15 minutes each)
    nox -s calibrate -- --list                                           what is stored

Tells, for each metric: the spread of A/A generations, how much of it is an offset that a process keeps for life, the smallest
effect that 6, 10 and 20 generations find, and how often the test of a confirm experiment called no change a change, with its
exact interval. Every experiment is stored as it ends; after a kill the same command goes on. Later reports on this device use
it: a screen takes its spread where the workload has none of its own, a verdict shows it.
"""

from __future__ import annotations

import argparse

from harness.bench.devices import AUTO, visible_device
from harness.context import Context
from harness.errors import UsageError
from harness.vocabulary import Device, Engine, ExitCode, Mode, Tier

__all__ = ["configure", "main"]

KERNEL_EXPERIMENTS = 40
ENGINE_EXPERIMENTS = 2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", metavar="NAME", help="a file of workloads/, for example vllm/triton_decode")
    parser.add_argument("--points", nargs="+", default=[], metavar="POINT", help="of a kernel workload (default: three)")
    parser.add_argument(
        "--experiments",
        type=_count,
        metavar="N",
        help=f"how many there shall be (default: {KERNEL_EXPERIMENTS} of a kernel, {ENGINE_EXPERIMENTS} of a script)",
    )
    parser.add_argument("--generations", type=_count, metavar="N", help="of each experiment (default: as a confirm has)")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no experiment after this time")
    parser.add_argument("--pin", metavar="PIN", default="bench", help="bench, head or a pinned version (default: %(default)s)")
    parser.add_argument("--model", metavar="PATH|NAME", help="a real model's folder, or another model of workloads/models")
    parser.add_argument("--mode", choices=[one.value for one in Mode], help="default: live for servers and kernels")
    parser.add_argument("--device", choices=[AUTO, *(one.value for one in Device)], default=AUTO,
                        help="default: cuda where there is a GPU, else cpu")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed of prompts and order (default: %(default)s)")
    parser.add_argument("--evidence", metavar="NAME", help="store it as workloads/calibrations/NAME.json and .md too")
    parser.add_argument("--list", action="store_true", help="print what is stored, and stop")


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.bench.calibrate import CalibrationRequest, calibrate  # noqa: PLC0415
    from harness.bench.request import BenchRequest  # noqa: PLC0415 - keeps --help quick
    from harness.calibrate.model import calibrations, file_of  # noqa: PLC0415
    from harness.calibrate.report import render  # noqa: PLC0415
    from harness.errors import EvidenceError  # noqa: PLC0415
    from harness.experiments import codec  # noqa: PLC0415
    from harness.files import write_atomically  # noqa: PLC0415
    from harness.workloads.kernel_reader import list_kernel_workloads  # noqa: PLC0415

    if args.list:
        for one in calibrations(context.paths):
            print(render(one))
        return ExitCode.OK
    if not args.workload:
        raise UsageError("say with which workload: --workload vllm/triton_decode; nox -s bench_kernels -- --list shows them")
    engine = args.workload.partition("/")[0]
    if engine not in set(Engine):
        raise UsageError(f"{args.workload!r} names no engine: workloads are called ENGINE/NAME")
    kernel = args.workload in list_kernel_workloads(context.paths)
    bench = BenchRequest(
        patched="",
        workload=args.workload,
        model=args.model,
        pin=args.pin,
        device=visible_device() if args.device == AUTO else Device(args.device),
        mirror=None,
        tier=Tier.CONFIRM,
        mode=Mode(args.mode) if args.mode else None,
        aa=True,
        repeat=1,
        generations=args.generations,
        blocks=None,
        seed=args.seed,
        dry_run=False,
        resume=None,
        keep=False,
        fail_on=frozenset(),
    )
    wanted = args.experiments or (KERNEL_EXPERIMENTS if kernel else ENGINE_EXPERIMENTS)
    seconds = None if args.minutes is None else args.minutes * 60
    found = calibrate(context, CalibrationRequest(bench, Engine(engine), tuple(args.points), wanted, seconds))
    text = render(found)
    print(text)
    context.progress.say(f"all values are in {file_of(context.paths, found)}")
    if args.evidence and found.trials:
        folder = context.paths.workloads / "calibrations"
        folder.mkdir(exist_ok=True)
        write_atomically(folder / f"{args.evidence}.json", codec.pretty(found), EvidenceError)
        write_atomically(folder / f"{args.evidence}.md", text, EvidenceError)
        context.progress.say(f"stored as {folder / args.evidence}.json and .md")
    return ExitCode.OK
