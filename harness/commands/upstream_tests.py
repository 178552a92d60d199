"""Run the engine's own tests, those named in series.toml, on base and patched tree, and compare them test by test.

  nox -s upstream_tests -- vllm/NAME                        all files of upstream_tests in series.toml
  nox -s upstream_tests -- vllm/NAME --files tests/v1/sample/test_sampler.py -k greedy
  nox -s upstream_tests -- vllm/NAME --save                 store the result beside the series and list it as evidence
  nox -s upstream_tests -- vllm/NAME --arms BASE PATCHED --python PYTHON
                                                            on two folders of your own, on a host without git: each file of the
                                                            series must have the content that its patches say

The tests are those of the patched tree, for both arms, so the series' own tests show that they fail without it. A test that
fails on the base is not held against the series; one that fails only with it is a new failure, and makes the exit code 1. A
test that hangs or ends the interpreter is named and the rest goes on; one that asks for another machine or for a model's files
is listed as such.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

from harness.context import Context
from harness.vocabulary import Device, ExitCode

__all__ = ["configure", "main"]

NVIDIA = Path("/proc/driver/nvidia/version")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("series", metavar="ENGINE/NAME", help="the series")
    parser.add_argument("--pin", metavar="PIN", help="bench, head or a version (default: the one in series.toml)")
    parser.add_argument("--device", type=Device, choices=list(Device), help="default: cuda where there is an NVIDIA driver")
    parser.add_argument("--files", nargs="+", metavar="FILE", help="other files than those in series.toml")
    parser.add_argument("-k", dest="only", metavar="EXPRESSION", help="only tests that match, as pytest's -k")
    parser.add_argument("--test-timeout", type=float, default=600.0, metavar="S", help="seconds for one test (default: 600)")
    parser.add_argument("--file-timeout", type=float, default=3600.0, metavar="S", help="seconds for one file (default: 3600)")
    parser.add_argument(
        "--arms", nargs=2, type=Path, metavar=("BASE", "PATCHED"), help="two folders in the repository's layout"
    )
    parser.add_argument("--python", type=Path, metavar="PATH", help="the interpreter for --arms (default: this one)")
    parser.add_argument("--mirror", type=Path, metavar="PATH", help="a local git repository of the engine to take the pin from")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder for logs (default: upstream_tests in the state folder)"
    )
    parser.add_argument(
        "--save", action="store_true", help="store the result in the series' evidence/ and list it in series.toml"
    )


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.errors import SeriesError, UsageError  # noqa: PLC0415 - keeps --help quick
    from harness.pins.reader import read_pins  # noqa: PLC0415
    from harness.series.reader import read_series  # noqa: PLC0415
    from harness.upstream_tests.arms import arms_of_folders, made_arms  # noqa: PLC0415
    from harness.upstream_tests.model import write_report  # noqa: PLC0415
    from harness.upstream_tests.render import render  # noqa: PLC0415
    from harness.upstream_tests.run import Limits  # noqa: PLC0415
    from harness.upstream_tests.session import Session, run_session  # noqa: PLC0415
    from harness.upstream_tests.store import list_evidence  # noqa: PLC0415

    if args.python and not args.arms:
        raise UsageError("--python goes with --arms; the harness's own arms have their own interpreter")
    paths = context.paths
    series = read_series(paths, args.series)
    pin = read_pins(paths.pins_file).find(series.engine, args.pin or series.pin)
    files = tuple(args.files or series.upstream_tests)
    if not files:
        raise SeriesError(f"{series.id} names no upstream_tests in series.toml; add some there, or give --files")
    device = args.device or (Device.CUDA if NVIDIA.exists() else Device.CPU)
    if args.arms:
        below, above = args.arms
        base, patched = arms_of_folders(context, series, pin, (below, above), args.python or Path(sys.executable))
    else:
        base, patched = made_arms(context, series, pin, device, args.mirror)
    output = args.output or paths.state / "upstream_tests" / f"{series.engine}-{series.name}-{pin.version}"
    session = Session(
        series=series,
        pin=pin.version,
        device=device,
        files=files,
        options=("-k", args.only) if args.only else (),
        limits=Limits(args.test_timeout, args.file_timeout),
        output=output.resolve(),
    )
    report = run_session(session, base, patched, context.progress)
    print(render(report))
    print(f"logs in {session.output}")
    if args.save:
        day = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
        name = f"evidence/{day}-upstream-tests-{pin.version}-{device}.json"
        write_report(series.directory / name, report)
        list_evidence(series, name)
        print(f"stored in {series.directory / name}, listed in series.toml")
    return ExitCode.ERROR if report.new_failures else ExitCode.OK
