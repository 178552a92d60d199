"""Add a release of an engine to upstream/pins.toml.

  nox -s pin -- vllm 0.34.0
  nox -s pin -- flashinfer 0.7.5 --torch 2.14.0

Finds the release's archive on your package index (pip's settings count), fetches it, and records its hash, its torch version
and what it requires of the other engines. The new pin has the role "extra"; edit the file to make it bench or head.
"""

from __future__ import annotations

import argparse

from harness.context import Context
from harness.vocabulary import Engine, ExitCode

__all__ = ["configure", "main"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", type=Engine, choices=list(Engine), metavar="ENGINE", help=f"one of {', '.join(Engine)}")
    parser.add_argument("version", metavar="VERSION", help="the release, as on the package index")
    parser.add_argument(
        "--torch", metavar="VERSION", help="torch to run it with, for a release that asks for no particular one"
    )


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.pins.adding import add_pin  # noqa: PLC0415 - keeps --help quick
    from harness.pins.reader import read_pins  # noqa: PLC0415
    from harness.trees.use import using  # noqa: PLC0415

    pins = read_pins(context.paths.pins_file)
    there = next((pin for pin in pins.of(args.engine) if pin.version == args.version), None)
    if there is not None:
        print(f"{args.engine} {args.version} is pinned already (role {there.role}, archive {there.archive.filename})")
        return ExitCode.OK
    with using(context.paths, [context.paths.archives]):
        pin = add_pin(context.paths, args.engine, args.version, context.progress, torch=args.torch)
    print(f"pinned {pin.name} in {pins.path}")
    print(f"  archive   {pin.archive.filename}\n  sha256    {pin.archive.sha256}\n  torch     {pin.torch}")
    print(f"  requires  {', '.join(pin.requires) or 'nothing of the other engines'}")
    return ExitCode.OK
