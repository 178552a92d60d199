"""Say what became of each series on other releases, and on any commit of the engine's repository.

  nox -s drift                                    every series on every pin of its engine
  nox -s drift -- vllm/NAME --pin head            one series on one pin
  nox -s drift -- vllm/NAME --mirror ~/vllm --ref main
                                                  also on a branch of a repository with history: there, where a series does not
                                                  apply, the last upstream commit at which it did is found
  nox -s drift -- --json drift.json               the same for programs

States: clean (applies as it is), clean-3way (after a 3-way merge), conflict (files and hunks named), landed (upstream has it),
target-gone (a file it changes is gone; where it went is named, and whether the patch applies there). A pin with a port of the
series is tried with the port. No tree is touched. The exit code is 1 only when a series could not be looked at.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.context import Context
from harness.vocabulary import ExitCode, Source

__all__ = ["configure", "main"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("series", nargs="*", metavar="ENGINE/NAME", help="default: all")
    parser.add_argument("--pin", action="append", default=[], metavar="PIN", help="bench, head or a version; may be repeated")
    parser.add_argument("--ref", action="append", default=[], metavar="REF", help="a branch, tag or commit; may be repeated")
    parser.add_argument("--mirror", type=Path, metavar="PATH", help="a local git repository of the engine to take both from")
    parser.add_argument(
        "--source", type=Source, choices=list(Source), help="take the pins only from git, or only from archives"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result as JSON")


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.drift.report import render_json, render_table  # noqa: PLC0415 - keeps --help quick
    from harness.drift.survey import Request, survey  # noqa: PLC0415
    from harness.errors import SeriesError, UsageError  # noqa: PLC0415
    from harness.files import write_atomically  # noqa: PLC0415
    from harness.pins.reader import read_pins  # noqa: PLC0415
    from harness.series.reader import check_name, list_series  # noqa: PLC0415

    paths = context.paths
    for name in args.series:
        check_name(paths, name)
    names = args.series or list_series(paths)
    if len({name.partition("/")[0] for name in names}) > 1 and (args.mirror or args.ref):
        raise UsageError("--mirror and --ref belong to one engine: name its series")
    request = Request(tuple(args.pin), tuple(args.ref), args.mirror, args.source)
    rows = survey(paths, read_pins(paths.pins_file), names, request, context.progress)
    print(render_table(rows))
    if args.json:
        write_atomically(args.json, render_json(rows), SeriesError)
    return ExitCode.ERROR if any(row.problem for row in rows) else ExitCode.OK
