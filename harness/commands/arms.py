"""List every difference of two arms; fail where one is not the series.

  nox -s arms -- base vllm/penalties-bin-counts
  nox -s arms -- base ~/src/vllm                  a checkout of your own, uncommitted changes included
  nox -s arms -- base my-branch --mirror ~/src/vllm
  nox -s arms -- base vllm/x --pin 0.24.0
  nox -s arms -- base sglang/x --engine sglang --device cuda

An arm is `base` (the pin itself), a series, a ref or a path. Compared are the files of the trees, the links to the engine's
compiled and generated files (by hash), packages, environment variables and the interpreter. Exit code 1 when the comparison
would measure something besides the series.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.context import Context
from harness.vocabulary import Device, Engine, ExitCode

__all__ = ["configure", "main"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="base, a series (vllm/NAME), a ref, or the path of a checkout")
    parser.add_argument("b", metavar="B", help="the arm to compare it with")
    parser.add_argument("--engine", choices=[one.value for one in Engine], default=Engine.VLLM.value, help="default: vllm")
    parser.add_argument("--pin", default="bench", metavar="VERSION", help="release, or bench or head (default: bench)")
    parser.add_argument("--device", choices=[one.value for one in Device], default=Device.CPU.value, help="default: cpu")
    parser.add_argument("--mirror", type=Path, metavar="PATH", help="a clone to take the source from instead of the pin's URL")


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.arms.compare import Cause, differences  # noqa: PLC0415 - keeps --help quick
    from harness.arms.resolve import arm_for  # noqa: PLC0415
    from harness.pins.reader import read_pins  # noqa: PLC0415

    paths, progress = context.paths, context.progress
    pin = read_pins(paths.pins_file).find(Engine(args.engine), args.pin)
    device = Device(args.device)
    a = arm_for(paths, pin, args.a, device, progress, mirror=args.mirror)
    b = arm_for(paths, pin, args.b, device, progress, mirror=args.mirror)
    found = differences(a, b)
    if not found:
        print(f"{args.a} and {args.b} are the same arm ({pin.name}, {a.environment.name})")
        return ExitCode.OK
    width = max(len(one.name) for one in found)
    for one in found:
        print(f"{one.kind:<11}  {one.name:<{width}}  {one.a} -> {one.b}  ({one.cause})")
    other = sum(one.cause is Cause.OTHER for one in found)
    if other:
        print(f"{len(found)} differences, {other} of them not the series: a comparison of these arms would mislead")
        return ExitCode.ERROR
    print(f"{len(found)} differences, all of them the series")
    return ExitCode.OK
