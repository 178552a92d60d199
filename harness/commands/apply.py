"""Make the tree of a series: a pin with its patches applied.

  nox -s apply -- vllm/NAME                     the tree that is measured, named by its tip
  nox -s apply -- vllm/NAME --work              the tree to work in; commit there, then export
  nox -s apply -- vllm/NAME --tree ~/vllm       onto HEAD of a checkout of your own, as git am would
  nox -s apply -- vllm/NAME --pin head          on another pin: its port, else the bench pin's patches
  nox -s apply -- vllm/NAME --update-lock       after patches or pins changed on purpose

Base and patches give the same tip on every machine, whatever git is set to; a tip that is not the one in upstream/lock.toml is
an error. A patch that does not apply is named with file and hunk, and nothing changes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.context import Context
from harness.pins.model import Pin
from harness.series.model import Series
from harness.vocabulary import ExitCode, Source

__all__ = ["configure", "main"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("series", metavar="ENGINE/NAME", help="the series")
    parser.add_argument("--pin", metavar="PIN", help="bench, head or a version (default: the one in series.toml)")
    parser.add_argument("--mirror", type=Path, metavar="PATH", help="a local git repository of the engine to take it from")
    parser.add_argument(
        "--source", type=Source, choices=list(Source), help="take the base only from git, or only from the archive"
    )
    parser.add_argument("--update-lock", action="store_true", help="write base and tip to upstream/lock.toml")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--work", action="store_true", help="make the work tree, or say where it is")
    where.add_argument("--tree", type=Path, metavar="PATH", help="apply to a clean checkout of your own; a branch moves along")


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.errors import UsageError  # noqa: PLC0415 - keeps --help quick
    from harness.pins.reader import read_pins  # noqa: PLC0415
    from harness.series.lock import Built, check_lock, record  # noqa: PLC0415
    from harness.series.reader import read_series  # noqa: PLC0415
    from harness.trees.worktrees import patched_tree, work_tree  # noqa: PLC0415

    paths = context.paths
    series = read_series(paths, args.series)
    pin = read_pins(paths.pins_file).find(series.engine, args.pin or series.pin)
    if args.update_lock and (args.work or args.tree):
        raise UsageError("--update-lock goes with the measured tree: leave out --work and --tree")
    if pin.version != series.pin and pin.version not in series.ports:
        context.progress.warn(f"{series.id} has no port to {pin.name}; trying its patches for {series.pin}")
    if args.tree:
        return _onto(args.tree, series, pin)
    make = work_tree if args.work else patched_tree
    tree = make(paths, pin, series, progress=context.progress, mirror=args.mirror, source=args.source)
    if not args.work:
        built = Built(pin, tree.source, tree.base, series, tree.tip)
        if args.update_lock:
            record(paths.lock_file, built)
        elif not check_lock(paths.lock_file, built):
            context.progress.warn(
                f"{series.id} on {pin.name} from {tree.source} is not in {paths.lock_file} yet (--update-lock)"
            )
    print(f"tree    {tree.path}")
    print(f"tip     {tree.tip}")
    print(f"base    {tree.base}")
    print(f"source  {tree.source}")
    return ExitCode.OK


def _onto(checkout: Path, series: Series, pin: Pin) -> ExitCode:
    from harness.series.apply import apply_series  # noqa: PLC0415

    tip = apply_series(checkout.expanduser().resolve(), series, pin)
    print(f"tree    {checkout}")
    print(f"tip     {tip}")
    return ExitCode.OK
