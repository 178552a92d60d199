"""List what trees, environments, caches and results take on the disk, and free it.

  nox -s clean                                     list, remove nothing
  nox -s clean -- --yes                            free everything that can be made again
  nox -s clean -- --what trees environments --yes  free only that
  nox -s clean -- --what experiments --yes         results too, only when named

A tree with uncommitted changes or commits of yours is kept and named, and so is what a running experiment or installation uses.
Results and work trees go only when they are named.
"""

from __future__ import annotations

import argparse

from harness.context import Context
from harness.vocabulary import ExitCode

__all__ = ["configure", "main"]

MEGABYTE = 1_000_000
WHAT = ("trees", "environments", "arms", "models", "archives", "repositories", "work", "experiments")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--what",
        nargs="+",
        choices=WHAT,
        metavar="KIND",
        help=f"one or several of {', '.join(WHAT)} (default: all but the last two)",
    )
    parser.add_argument("--yes", action="store_true", help="remove what is listed (without it nothing is removed)")


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.trees.cleaning import DEFAULT, Kind, free, list_items  # noqa: PLC0415 - keeps --help quick

    wanted = tuple(Kind(one) for one in args.what) if args.what else DEFAULT
    items = list_items(context.paths)
    chosen = [item for item in items if item.kind in wanted]
    for item in items:
        mark = "free" if item in chosen else "keep"
        print(f"{mark}  {item.size / MEGABYTE:>10.1f} MB  {item.kind:<12}  {item.name}")
    total = sum(item.size for item in items)
    print(f"      {total / MEGABYTE:>10.1f} MB  in all, in {context.paths.state}")
    if not args.yes:
        if chosen:
            print(f"{sum(item.size for item in chosen) / MEGABYTE:.1f} MB can be freed; add --yes to do it")
        return ExitCode.OK
    removals = free(context.paths, chosen, context.progress)
    freed = sum(removal.item.size for removal in removals if removal.kept is None)
    for removal in removals:
        if removal.kept is not None:
            print(f"kept {removal.item.kind} {removal.item.name}: {removal.kept}")
    print(f"freed {freed / MEGABYTE:.1f} MB")
    return ExitCode.OK
