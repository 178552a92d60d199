"""Compare two profiles kernel by kernel: what became faster or slower, what is new, what vanished.

    nox -s diff -- BASE PATCHED              folders of `nox -s profile`, its profile.json, exports of nsys, or traces
    nox -s diff -- BASE PATCHED --top 40     more rows
    nox -s diff -- BASE PATCHED --out DIR    keep the report and the chart there

Kernels are matched by name (without template arguments and the suffixes that Triton and torch.compile number), phase and
GPU. The rows and the change of the overlap add up to the change of busy time, to the nanosecond. One recording an arm tells
which kernels changed, not whether a run became faster: that takes an experiment.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.context import Context
from harness.vocabulary import ExitCode


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, metavar="BASE", help="the profile to compare with")
    parser.add_argument("after", type=Path, metavar="PATCHED", help="the profile that is compared")
    parser.add_argument("--labels", nargs=2, metavar=("A", "B"), help="names of the two in the table (default: their own)")
    parser.add_argument("--top", type=int, default=25, metavar="N", help="rows of the table (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for report and chart (default: print only)")
    parser.add_argument("--no-charts", action="store_true", help="make no PNG (it needs matplotlib)")


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.profiles.session import run_diff  # noqa: PLC0415 - keeps --help quick

    return run_diff(args, context)
