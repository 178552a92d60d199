"""Make an offline kit of the engines for a GPU host without a network.

  nox -s bundle -- --engines vllm flashinfer --arch 9.0 --python 3.12 --have have.txt
  nox -s bundle -- --part-size 200M --output /media/usb/kit

Takes the bench pins' CUDA wheels and what they need, leaves out what the host has (`--have`: on the host, `python3 -m pip list
--format=freeze > have.txt`) and what its GPU cannot use, and writes parts no larger than --part-size with a list of hashes and
`unpack.py`. Copy those to the host and run, with the Python that has torch there:

  python3 unpack.py part-*.tar.xz --into ~/kit       (or one call a part)
  ~/kit/envs/vllm/bin/vllm --version
  UPKERNEL_KIT=~/kit ~/kit/envs/harness/bin/python -m harness bench_vllm ...    (in a copy of this checkout: arms from the kit)

What is fetched and compressed is kept: after an interruption, or when little changed, a second run does the rest only.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from harness.context import Context
from harness.errors import UsageError
from harness.vocabulary import Engine, ExitCode, PinRole

__all__ = ["configure", "main"]

SUFFIXES = {"": 1, "K": 1_000, "M": 1_000_000, "G": 1_000_000_000}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engines", nargs="+", type=Engine, choices=list(Engine), default=list(Engine), metavar="ENGINE",
                        help=f"any of {', '.join(Engine)} (default: all)")  # fmt: skip
    parser.add_argument(
        "--arch", default="9.0", metavar="X.Y", help="compute capability of the host's GPU (default: 9.0, Hopper)"
    )
    parser.add_argument("--python", default="3.12", metavar="3.X", help="Python of the host (default: 3.12)")
    parser.add_argument(
        "--part-size", default="60M", metavar="SIZE", help="most bytes of one part, as in 60M or 2G (default: 60M)"
    )
    parser.add_argument(
        "--have", type=Path, metavar="FILE", help="the host's packages, as `pip list` or `pip freeze` prints them"
    )
    parser.add_argument("--with-tests", action="store_true", help="add what the engines' own tests import")
    parser.add_argument("--no-sources", action="store_true", help="leave out the source archives, from which trees are made")
    parser.add_argument("--all-architectures", action="store_true", help="keep machine code of other GPUs in the libraries")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to write the kit (default: kit/ in the checkout)")


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    size = part_size(args.part_size)
    from harness.bundle.kit import Request, make_kit  # noqa: PLC0415 - keeps --help quick
    from harness.bundle.target import Target, read_have  # noqa: PLC0415
    from harness.pins.reader import read_pins  # noqa: PLC0415
    from harness.trees.use import using  # noqa: PLC0415

    pins = read_pins(context.paths.pins_file)
    request = Request(
        pins=tuple(next(pin for pin in pins.of(engine) if pin.role is PinRole.BENCH) for engine in dict.fromkeys(args.engines)),
        target=Target(args.python, args.arch, read_have(args.have) if args.have else {}),
        part_size=size,
        output=(args.output or context.paths.root / "kit").resolve(),
        with_tests=args.with_tests,
        with_sources=not args.no_sources,
        thin=not args.all_architectures,
    )
    with using(context.paths, [context.paths.archives]):
        kit = make_kit(request, context.paths, context.progress)
    print(f"kit {kit.description['kit']} in {request.output}: Python {args.python}, compute capability {args.arch}")
    for path, owners in zip(kit.parts, kit.description["parts"], strict=True):
        print(f"  {path.name}  {path.stat().st_size / 1e6:5.1f} MB  {_some(owners)}")
    for reason, count in sorted(kit.left.items(), key=lambda one: -one[1]):
        print(f"  left out {count / 1e6:7.1f} MB: {reason}")
    for engine, entry in kit.description["engines"].items():
        print(f"  {engine} {entry['version']}: {len(entry['distributions'])} distributions, {len(entry['host'])} from the host")
    print(f"copy the parts and unpack.py; on the host: python3 unpack.py {kit.parts[0].name} ... --into DIR")
    return ExitCode.OK


def part_size(text: str) -> int:
    """60M -> 60000000. Raises UsageError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]?)B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"--part-size {text!r} is no size; write it as 60M or 2G")
    return int(float(match[1]) * SUFFIXES[match[2].upper()])


def _some(owners: list[str]) -> str:
    return ", ".join(owners[:4]) + (f" and {len(owners) - 4} more" if len(owners) > 4 else "")
