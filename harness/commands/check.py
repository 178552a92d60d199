"""Say what a reviewer would send back: lint every series, and prove that its patches are what they say.

  nox -s check                       all series
  nox -s check -- vllm/NAME          some of them
  nox -s check -- vllm/NAME --lint   also run the engine's own linters, with its settings, on the files of the series
  nox -s check -- --apply            also apply, export again (must be the same bytes), compare with upstream/lock.toml

A draft may still lack things, which are listed as "to do"; errors make the exit code 1. --apply needs the pin's source: each
kind (git, archive) that the lock has for the series.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from harness.context import Context
from harness.pins.model import Pin
from harness.series.lint import Finding, Severity
from harness.series.model import Series
from harness.series.rules import Rules
from harness.vocabulary import ExitCode, Source

__all__ = ["configure", "main"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("series", nargs="*", metavar="ENGINE/NAME", help="default: all")
    parser.add_argument("--apply", action="store_true", help="also apply, export again and compare with the lock")
    parser.add_argument("--lint", action="store_true", help="also run the engine's own linters on base and patched tree")
    parser.add_argument(
        "--mirror", type=Path, metavar="PATH", help="a local git repository of the engine to take the pins from"
    )


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.series.reader import check_name, list_series  # noqa: PLC0415 - keeps --help quick

    for name in args.series:
        check_name(context.paths, name)
    names = args.series or list_series(context.paths)
    findings = [finding for name in names for finding in _check(args, context, name)]
    if not args.series:
        findings += _left_over(context, names)
    for finding in findings:
        print(finding)
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    print(f"{len(names)} series: {errors} errors, {len(findings) - errors} to do")
    return ExitCode.ERROR if errors else ExitCode.OK


def _check(args: argparse.Namespace, context: Context, name: str) -> Iterator[Finding]:
    from harness.errors import UpkernelError  # noqa: PLC0415
    from harness.pins.reader import read_pins  # noqa: PLC0415
    from harness.series.lint import lint_series  # noqa: PLC0415
    from harness.series.reader import read_series  # noqa: PLC0415
    from harness.series.rules import read_rules  # noqa: PLC0415

    paths = context.paths
    # one broken series must not hide what is wrong with the others
    try:
        series = read_series(paths, name)
        rules = read_rules(paths.root / "upstream" / "rules.toml", series.engine)
        yield from lint_series(series, rules)
        pins = read_pins(paths.pins_file)
        for version in (series.pin, *series.ports):
            pin = pins.find(series.engine, version)
            if args.apply and series.patches:
                yield from _apply(args, context, series, pin)
            if args.lint and series.patches:
                yield from _linters(args, context, series, pin, rules)
    except UpkernelError as error:
        yield Finding(name, "series.toml", str(error))


def _linters(args: argparse.Namespace, context: Context, series: Series, pin: Pin, rules: Rules) -> Iterator[Finding]:
    from harness.linters.series import lint_on_pin  # noqa: PLC0415

    for file, message in lint_on_pin(context.paths, series, pin, rules, context.progress, mirror=args.mirror):
        yield Finding(series.id, f"{pin.name}, {file}", message)


def _left_over(context: Context, names: tuple[str, ...]) -> Iterator[Finding]:
    from harness.series.lock import read_lock  # noqa: PLC0415

    for name in sorted({series for series, _, _ in read_lock(context.paths.lock_file).tips} - set(names)):
        yield Finding(
            name, "upstream/lock.toml", f"has a tip of it, but there is no such series; take the table [tip.{name!r}] out"
        )


def _apply(args: argparse.Namespace, context: Context, series: Series, pin: Pin) -> Iterator[Finding]:
    from harness.series.lock import read_lock  # noqa: PLC0415

    tips = read_lock(context.paths.lock_file).tips
    sources = [source for source in Source if (series.id, pin.version, source) in tips]
    if not sources:
        advice = f"`nox -s apply -- {series.id} --pin {pin.version} --update-lock`"
        yield Finding(series.id, "upstream/lock.toml", f"has no tip of it on {pin.name}: {advice}")
    for source in sources:
        mirror = args.mirror if source is Source.GIT else None
        yield from _from_source(context, series, pin, source, mirror)


def _from_source(context: Context, series: Series, pin: Pin, source: Source, mirror: Path | None) -> Iterator[Finding]:
    from harness.errors import UpkernelError  # noqa: PLC0415
    from harness.series.lock import Built, check_lock  # noqa: PLC0415
    from harness.series.verify import round_trip  # noqa: PLC0415
    from harness.trees.repository import repository  # noqa: PLC0415
    from harness.trees.worktrees import base_of  # noqa: PLC0415

    where = f"{pin.name} from {source}"
    try:
        base = base_of(context.paths, pin, progress=context.progress, mirror=mirror, source=source)
        made = round_trip(repository(context.paths, pin.engine), base.commit, series, pin)
        for line in made.stale:
            yield Finding(series.id, where, f"{line}: `nox -s export -- {series.id}` writes it")
        check_lock(context.paths.lock_file, Built(pin, base.source, base.commit, series, made.tip))
    except UpkernelError as error:
        yield Finding(series.id, where, str(error))
