"""Reproduce a public issue: its workload on the engine as released, beside the published numbers.

    nox -s repro -- https://github.com/vllm-project/vllm/issues/48076
    nox -s repro -- sglang#2271 --generations 3           more fresh processes
    nox -s repro -- flashinfer#2990 --published           only what was published; needs no GPU
    nox -s repro -- --list                                threads that have a workload

Only the base is run, so this says how fast it is here, not whether a change helps. Absolute times hold for this GPU alone. A
run that a guard voids (other processes on the GPU, a compile in the window) is left out and told.
"""

from __future__ import annotations

import argparse

from harness.bench.devices import AUTO, visible_device
from harness.context import Context
from harness.errors import UsageError
from harness.vocabulary import Device, Engine, ExitCode

__all__ = ["configure", "main"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("thread", nargs="*", metavar="ISSUE-URL", help="address of an issue or pull request, or vllm#48076")
    parser.add_argument("--workload", metavar="NAME", help="one of the workloads of the thread (default: its first)")
    parser.add_argument("--pin", metavar="PIN", default="bench", help="bench, head or a pinned version (default: %(default)s)")
    parser.add_argument(
        "--device",
        choices=[AUTO, *(one.value for one in Device)],
        default=AUTO,
        help="default: cuda where there is a GPU, else what the workload allows",
    )
    parser.add_argument("--generations", type=_count, default=2, metavar="N", help="fresh processes (default: %(default)s)")
    parser.add_argument("--runs", type=_count, default=3, metavar="N", help="counted runs in each (default: %(default)s)")
    parser.add_argument("--published", action="store_true", help="print what was published, and measure nothing")
    parser.add_argument("--list", action="store_true", help="list the threads that have a workload, and stop")


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.errors import EvidenceError, ProbeError  # noqa: PLC0415 - keeps --help quick
    from harness.files import write_atomically  # noqa: PLC0415
    from harness.pins.reader import read_pins  # noqa: PLC0415
    from harness.repro.find import known_threads, read_any, thread_of, workloads_about  # noqa: PLC0415
    from harness.repro.measure import measure_base  # noqa: PLC0415
    from harness.repro.report import published_table, render  # noqa: PLC0415

    if args.list:
        for name, links in known_threads(context.paths).items():
            print(name, *links, sep="\n  ")
        return ExitCode.OK
    if not args.thread:
        raise UsageError("say which issue: its address, or vllm#48076; --list shows those that have a workload")
    names = workloads_about(context.paths, thread_of(" ".join(args.thread)))
    name = args.workload or names[0]
    if name not in names:
        raise UsageError(f"workload {name} does not name that thread; these do: {', '.join(names)}")
    if len(names) > 1 and not args.workload:
        context.progress.say(f"workload {name}; {', '.join(names[1:])} name the thread too (choose with --workload)")
    workload = read_any(context.paths, name)
    if args.published:
        print(published_table(workload))
        return ExitCode.OK
    device = _device(args.device, workload.devices)
    pin = read_pins(context.paths.pins_file).find(Engine(workload.engine), args.pin)
    try:
        found, folder = measure_base(context, pin, workload, device, generations=args.generations, runs=args.runs)
    except ProbeError:
        # What needs no GPU is told all the same, before the error says what is missing.
        print(published_table(workload), flush=True)
        raise
    text = render(workload, found)
    write_atomically(folder / "report.md", text, EvidenceError)
    print(text)
    context.progress.say(f"result.json, report.md and logs are in {folder}")
    return ExitCode.OK


def _device(asked: str, allowed: tuple[Device, ...]) -> Device:
    device = (visible_device() if visible_device() in allowed else allowed[0]) if asked == AUTO else Device(asked)
    if device not in allowed:
        raise UsageError(f"the workload is for {', '.join(allowed)}, not for {device}")
    return device
