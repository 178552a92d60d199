"""Say what this machine can do, and how to mend what it cannot.

  nox -s doctor

ok, warn (works, but worse), absent (optional, for GPU work) or fail (needed) for each thing looked at, with a remedy.
Exit code 1 when something needed fails.
"""

from __future__ import annotations

import argparse

from harness.context import Context
from harness.vocabulary import ExitCode

__all__ = ["configure", "main"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults()


def main(_args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.arms.probes import ProbeState  # noqa: PLC0415 - keeps --help quick
    from harness.doctor.report import examine, table  # noqa: PLC0415

    probes = examine(context.paths)
    print(table(probes))
    failing = [one.name for one in probes if one.state is ProbeState.FAIL]
    if failing:
        print(f"\nnot ready: {', '.join(failing)}")
        return ExitCode.ERROR
    print("\nready for benchmarks on the CPU")
    return ExitCode.OK
