"""The command line: finds the command, turns errors into one message and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from harness.context import Context
from harness.errors import UpkernelError
from harness.paths import STATE_VARIABLE, Paths
from harness.progress import Progress
from harness.vocabulary import ExitCode

__all__ = ["COMMANDS", "build_parser", "main"]

# In the order in which a newcomer meets them. Each is a module of harness.commands.
COMMANDS = (
    "doctor",
    "bench_vllm",
    "bench_sglang",
    "bench_flashinfer",
    "bench_kernels",
    "pin",
    "new",
    "apply",
    "export",
    "check",
    "drift",
    "port",
    "upstream_tests",
    "pr",
    "arms",
    "repro",
    "calibrate",
    "profile",
    "diff",
    "bundle",
    "clean",
)


def _command(name: str) -> ModuleType:
    return importlib.import_module(f"harness.commands.{name}")


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command; importing a command must stay cheap (no torch, no network) and work without git."""
    parser = argparse.ArgumentParser(
        prog="python -m harness",
        description="Measure a patch series against pinned vLLM, SGLang and FlashInfer, and get it ready to send upstream. "
        "Each command is typed as `nox -s COMMAND -- ...`, which brings the packages that it needs.",
        epilog="Exit codes: 0 faster, equivalent, a screen or no experiment; 10 slower; 11 inconclusive; 12 void; "
        f"1 error; 2 usage. {STATE_VARIABLE} moves upstream/state (repositories, trees, environments, runs) elsewhere.",
    )
    _add_common(parser, later=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = _command(name)
        text = module.__doc__ or ""
        one_line = text.strip().splitlines()[0]
        sub = commands.add_parser(
            name,
            prog=f"nox -s {name} --",
            help=one_line,
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.configure(sub)
        _add_common(sub, later=True)
    return parser


def _add_common(parser: argparse.ArgumentParser, *, later: bool) -> None:
    """Options of every command, before its name or `later`: nox passes on only what comes after it."""
    # A default given later would replace what was given before.
    path, flag = (argparse.SUPPRESS, argparse.SUPPRESS) if later else (None, False)
    where = "folder for what can be made again (default: upstream/state)"
    parser.add_argument("--state", type=Path, metavar="DIR", default=path, help=where)
    parser.add_argument("--quiet", action="store_true", default=flag, help="print results and warnings only")
    parser.add_argument("--traceback", action="store_true", default=flag, help="show the Python traceback of an error")


def main(argv: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    args = build_parser().parse_args(argv)
    context = Context(paths=Paths.of(state=args.state), progress=Progress(quiet=args.quiet))
    try:
        return int(_command(args.command).main(args, context))
    except UpkernelError as error:
        if args.traceback:
            raise
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; finished work is kept", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output (head, less) went away; keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)
    except OSError as error:
        # A full disk or a missing permission, at a place that knows nothing better to say about it.
        if args.traceback:
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(f"error: {error.strerror or error}{where}. What was finished is kept; --traceback shows where.", file=sys.stderr)
        return int(ExitCode.ERROR)
