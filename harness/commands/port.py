"""Carry a series to another pin, and write it to patches/ENGINE/NAME/ports/PIN.

  nox -s port -- vllm/NAME --to head             merge 3-way onto the pin; files that moved are followed
  nox -s port -- vllm/NAME --to head --continue  after you have solved the conflicts in the tree that it names
  nox -s port -- vllm/NAME --to head --skip      leave the patch that waits out
  nox -s port -- vllm/NAME --to head --abort     give the port up
  nox -s port -- vllm/NAME --to head --redo      make a port again that is there already

Where a patch conflicts, the tree is left as git am leaves it, and file and line are named: edit, `git add`, --continue. When
the last patch is through, the commits are exported, proved to apply again, and shown beside the old ones (git range-diff). The
port is listed in series.toml and its tip is locked.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.context import Context
from harness.vocabulary import ExitCode, Source

__all__ = ["configure", "main"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("series", metavar="ENGINE/NAME", help="the series")
    parser.add_argument("--to", required=True, metavar="PIN", help="head or a version in upstream/pins.toml")
    parser.add_argument(
        "--mirror", type=Path, metavar="PATH", help="a local git repository of the engine to take the pins from"
    )
    parser.add_argument(
        "--source", type=Source, choices=list(Source), help="take the pins only from git, or only from archives"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--continue", dest="resume", action="store_true", help="go on, after you have solved the conflicts")
    what.add_argument("--skip", action="store_true", help="leave the patch that waits out, and go on")
    what.add_argument("--abort", action="store_true", help="give the port up, with what was done in its tree")
    what.add_argument("--redo", action="store_true", help="make a port again that is there; the old one stays until it is done")


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.pins.reader import read_pins  # noqa: PLC0415 - keeps --help quick
    from harness.port.carry import Stopped, carry, go_on  # noqa: PLC0415
    from harness.port.steps import abandon, begin, finish, resume  # noqa: PLC0415
    from harness.series.reader import read_series  # noqa: PLC0415

    paths, progress = context.paths, context.progress
    series = read_series(paths, args.series)
    pins = read_pins(paths.pins_file)
    pin = pins.find(series.engine, args.to)
    if args.abort:
        abandon(paths, series, pin, progress)
        print(f"the port of {series.id} to {pin.name} was given up")
        return ExitCode.OK
    if args.resume or args.skip:
        tree, state = resume(paths, series, pin)
        state = go_on(tree, state, skip=args.skip)
    else:
        own = pins.find(series.engine, series.pin)
        tree, state = begin(paths, series, own, pin, progress, mirror=args.mirror, source=args.source, redo=args.redo)
    try:
        state = carry(tree, series.directory, state)
    except Stopped as stop:
        print(f"{stop.patch} conflicts on {pin.name}. Solve it in {tree}:")
        for place in stop.conflicts:
            print(f"  {place}")
        print(f"then `git add` the files and `nox -s port -- {series.id} --to {args.to} --continue` (or --skip, --abort)")
        return ExitCode.ERROR
    done = finish(paths, series, pin, tree, state)
    print(done.range_diff)
    for old, new in done.moves:
        print(f"moved: {old} -> {new or 'not found'}")
    for name in done.left_out:
        print(f"left out: {name}: {pin.name} has it already, or it was skipped")
    for name in done.patches:
        print(f"ports/{pin.version}/{name}")
    print(f"tip {done.tip}, locked for the source {state.source}")
    return ExitCode.OK
