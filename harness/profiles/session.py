"""What the commands `profile` and `diff` do: record or read, print, keep."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.context import Context
from harness.errors import ProfileError, UsageError
from harness.files import write_atomically
from harness.profiles.charts import DIFFERENCE_NAME, TOP_NAME, draw_difference, draw_top
from harness.profiles.difference import compare
from harness.profiles.engines import Profiled, engine_of, profiled
from harness.profiles.model import Profile
from harness.profiles.ncu import collect, counters_table, locate_ncu
from harness.profiles.nsys import export_report, locate_nsys, record
from harness.profiles.reading import REPORTS, read_profile
from harness.profiles.report import (
    difference_headline,
    difference_notes,
    difference_table,
    markdown,
    profile_markdown,
    profile_terminal,
    terminal,
)
from harness.profiles.store import TABLE_NAME, save_profile
from harness.vocabulary import Device, ExitCode

__all__ = ["run_diff", "run_profile"]

REPORT_NAME = "report.md"
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class _Target:
    """What will run, and what it is called."""

    profiled: Profiled
    environment: Mapping[str, str]
    label: str


def run_profile(args: argparse.Namespace, context: Context) -> ExitCode:
    """Raises UsageError for options that do not go together, and ProfileError."""
    if args.top < 1:
        raise UsageError(f"--top is {args.top}; a table has at least 1 row")
    given = [one for one in (args.source and "--from", args.workload and "--workload", args.words and "a command") if one]
    if len(given) != 1:
        raise UsageError(
            f"give one of --from FILE, --workload NAME, or a command after a second -- (given: {' and '.join(given) or 'none'})"
        )
    if args.source is not None:
        if args.ncu:
            raise UsageError("--ncu runs a command under Nsight Compute; a recording (--from) has no counters")
        return _finish(
            args, context, _read(args, context), _folder(args, context, args.label or args.source.name.split(".")[0])
        )
    target = _target(args, context)
    folder = _folder(args, context, target.label)
    if args.ncu:
        return _counters(args, context, target, folder)
    nsys = locate_nsys(args.nsys, args.nsys_libraries)
    context.progress.say(f"recording with nsys {nsys.version} ({nsys.path}); log: {folder / 'recording.log'}")
    with context.progress.step("the recorded run"):
        report = record(
            nsys,
            target.profiled.command,
            environment={**target.environment, **target.profiled.variables},
            folder=folder,
            timeout_s=args.timeout,
            ranged=target.profiled.ranged,
        )
    with context.progress.step(f"exporting {report.name}"):
        export = export_report(nsys, report, folder)
    with context.progress.step(f"reading {export.name} ({export.stat().st_size / 1e6:.1f} MB)"):
        profile = read_profile(export, label=target.label)
    return _finish(args, context, profile, folder)


def _read(args: argparse.Namespace, context: Context) -> Profile:
    source: Path = args.source
    if source.suffix in REPORTS:
        if not source.is_file():
            raise UsageError(f"there is no recording at {source}")
        nsys = locate_nsys(args.nsys, args.nsys_libraries)
        with context.progress.step(f"exporting {source.name} with nsys {nsys.version}"):
            source = export_report(nsys, source, _folder(args, context, source.stem))
    return read_profile(source, label=args.label)


def _target(args: argparse.Namespace, context: Context) -> _Target:
    if args.workload:
        return _workload(args, context)
    command = tuple(args.words[1:] if args.words[0] == "--" else args.words)
    engine = engine_of(command)
    if engine is None and not args.whole:
        context.progress.say("this is no script of vLLM or SGLang: it has to call cudaProfilerStart itself (or give --whole)")
    label = args.label or (engine.value if engine else Path(command[0]).name)
    return _Target(profiled(engine, command, whole=args.whole), _environment(context.paths.root), label)


def _environment(root: Path) -> dict[str, str]:
    """The user's, without this checkout on Python's path: engines would import our folder kernels/ for PyPI's package."""
    kept = dict(os.environ)
    places = [one for one in kept.pop("PYTHONPATH", "").split(os.pathsep) if one and Path(one).resolve() != root]
    if places:
        kept["PYTHONPATH"] = os.pathsep.join(places)
    return kept


def _workload(args: argparse.Namespace, context: Context) -> _Target:
    """The workload's script on an arm of this checkout, as the bench sessions run it."""
    from harness.profiles.workload import workload_command  # noqa: PLC0415 - brings git and the environments

    engine, command, environment = workload_command(
        context,
        args.workload,
        patched=args.patched,
        pin=args.pin,
        device=Device(args.device),
        folder=_folder(args, context, args.label or args.patched),
    )
    return _Target(profiled(engine, command, whole=args.whole), environment, args.label or args.patched)


def _folder(args: argparse.Namespace, context: Context, label: str) -> Path:
    """Where results go; made once a session."""
    if args.out is None:
        now = datetime.datetime.now(tz=datetime.UTC).strftime("%Y%m%d-%H%M%S")
        args.out = context.paths.state / "profiles" / f"{_NAME.sub('-', label).strip('-') or 'profile'}-{now}"
    folder = Path(args.out).expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProfileError(f"cannot make {folder}: {error.strerror or error}") from error
    return folder


def _finish(args: argparse.Namespace, context: Context, profile: Profile, folder: Path) -> ExitCode:
    sys.stdout.write(profile_terminal(profile, top=args.top))
    charts = []
    if not args.no_charts:
        draw_top(folder / TOP_NAME, profile)
        charts.append(TOP_NAME)
    save_profile(folder / TABLE_NAME, profile)
    write_atomically(folder / REPORT_NAME, profile_markdown(profile, top=args.top, charts=charts), ProfileError)
    context.progress.say(f"{', '.join([TABLE_NAME, REPORT_NAME, *charts])} are in {folder}")
    return ExitCode.OK


def _counters(args: argparse.Namespace, context: Context, target: _Target, folder: Path) -> ExitCode:
    ncu = locate_ncu(args.ncu_path)
    with context.progress.step(f"Nsight Compute ({ncu}) on {args.launches} launches of {args.ncu}"):
        found = collect(
            ncu,
            args.ncu,
            target.profiled.command,
            environment={**target.environment, **target.profiled.variables},
            folder=folder,
            timeout_s=args.timeout,
            launches=args.launches,
            skip=args.skip,
            ranged=target.profiled.ranged,
        )
    tables = [counters_table(one) for one in found]
    title = f"{target.label}: counters of {args.ncu}"
    notes = ["Clocks were left as they are; ncu replays a launch once a pass, so its time is no measurement."]
    sys.stdout.write(terminal(title, tables, notes))
    write_atomically(folder / "counters.md", markdown(title, tables, notes, ()), ProfileError)
    context.progress.say(f"counters.md and counters.csv are in {folder}")
    return ExitCode.OK


def run_diff(args: argparse.Namespace, context: Context) -> ExitCode:
    """Raises UsageError when a profile is not there, and ProfileError."""
    first, second = args.labels or (None, None)
    difference = compare(read_profile(args.before, label=first), read_profile(args.after, label=second))
    tables, notes = [difference_table(difference, args.top)], difference_notes(difference)
    title = difference_headline(difference)
    sys.stdout.write(terminal(title, tables, notes))
    if args.out is not None:
        folder = _folder(args, context, "difference")
        charts = []
        if not args.no_charts:
            draw_difference(folder / DIFFERENCE_NAME, difference)
            charts.append(DIFFERENCE_NAME)
        write_atomically(folder / REPORT_NAME, markdown(title, tables, notes, charts), ProfileError)
        context.progress.say(f"{', '.join([REPORT_NAME, *charts])} are in {folder}")
    return ExitCode.OK
