"""Start a series: its series.toml, and a tree to work in.

  nox -s new -- vllm/NAME

The way of a series:

  1. new     writes patches/vllm/NAME/series.toml and makes a work tree at the bench pin
  2. you     edit and commit in the work tree with your own git, one idea a commit, its test in it
  3. export  writes the commits as patches; amend or rebase and export again as often as you like
  4. check   says what a reviewer would send back; fill in series.toml until it is content

A work tree is detached, so commit right away or make a branch; `clean` keeps it while it has work of yours.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
from pathlib import Path

from harness.context import Context
from harness.vocabulary import ExitCode

__all__ = ["configure", "main"]

TEMPLATE = """\
# patches/README.md explains the fields. `nox -s check -- {id}` says what is still to do.

# One line, as the pull request's title will say it.
title = ""
# What is slow, for whom, how much, and what the patches do about it.
why = \"\"\"
\"\"\"
# Upstream issues and pull requests that it is about: whole https:// addresses.
links = []
# Series that must be applied first, in this order, as "{engine}/NAME".
after = []

# draft, ready, submitted, merged, rejected, or known-answer (upstream has it already; it checks our harness).
status = "draft"
status_date = {today}

# The bench pin that the patches are for, and other pins that have their own in ports/VERSION/.
pin = "{pin}"
ports = []

# What shows the difference (names in workloads/), and the upstream tests to run (paths in the engine's repository).
workloads = []
upstream_tests = []
# Results of experiments, as paths beside this file: "evidence/NAME.json".
evidence = []
# true when compiled sources change, so that an arm must be built.
build = false
# What makes the series unnecessary.
removal = ""

# When did you last search upstream for competing pull requests, and what did you find? Uncomment when you have.
# [duplicates]
# date = {today}
# links = []

# What the pull request needs beside all this stands in a table [pr]: `nox -s pr -- {id}` lists its fields.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("series", metavar="ENGINE/NAME", help="lower-case words joined by hyphens, such as vllm/faster-x")
    parser.add_argument("--mirror", type=Path, metavar="PATH", help="a local git repository of the engine to take it from")


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.errors import SeriesError  # noqa: PLC0415 - keeps --help quick
    from harness.pins.reader import read_pins  # noqa: PLC0415
    from harness.series.reader import parse_id, read_series  # noqa: PLC0415
    from harness.trees.worktrees import work_tree  # noqa: PLC0415

    paths = context.paths
    engine, name = parse_id(args.series)
    pin = read_pins(paths.pins_file).find(engine, "bench")
    directory = paths.patches / engine / name
    if directory.exists():
        raise SeriesError(
            f"{args.series} exists already, in {directory}. To work on it: `nox -s apply -- {args.series} --work`"
        )
    today = datetime.datetime.now(tz=datetime.UTC).date()
    directory.mkdir(parents=True)
    try:
        text = TEMPLATE.format(id=args.series, engine=engine, today=today, pin=pin.version)
        (directory / "series.toml").write_text(text, encoding="utf-8")
        tree = work_tree(paths, pin, read_series(paths, args.series), progress=context.progress, mirror=args.mirror)
    except BaseException:
        shutil.rmtree(directory)  # so that the same command can be given again
        raise
    print(f"series     {directory / 'series.toml'}")
    print(f"work tree  {tree.path}")
    print(f"base       {tree.base}  {pin.name} from {tree.source}")
    if tree.tip != tree.base:
        print(f"tip        {tree.tip}  the work tree was there already, with commits of yours")
    print(f"\nNext: commit your change in the work tree, then `nox -s export -- {args.series}`.")
    return ExitCode.OK
