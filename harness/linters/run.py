"""Run the engine's linters on the files of a series, and say what the base does not say already."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.errors import EnvironmentSetupError
from harness.series.rules import Linter, matches

__all__ = ["lint_files"]

TIMEOUT = 300.0  # seconds for one linter on one file
SHOWN = 8  # lines of one linter on one file
# Positions move with every edit; a complaint is the same one wherever it stands.
NUMBERS = re.compile(r"\d+")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def lint_files(
    programs: Path, linters: Sequence[Linter], base: Path, patched: Path, files: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """File and complaint for each file that a linter is less content with than on the base. The trees are not changed.

    `programs` is the folder with the linters' programs. Raises EnvironmentSetupError when one cannot be run.
    """
    for linter in linters:
        for file in files:
            if matches(file, linter.files) and (patched / file).is_file():
                lines = _complaints(programs, linter, patched, file)
                known = Counter(_same(line) for line in _complaints(programs, linter, base, file)) if lines else Counter()
                new = [line for line in lines if not _take(known, _same(line))]
                if new:
                    more = f"\n    and {len(new) - SHOWN} more lines" if len(new) > SHOWN else ""
                    yield file, f"{linter.name} ({_settings(linter, patched)}):\n    " + "\n    ".join(new[:SHOWN]) + more


def _complaints(programs: Path, linter: Linter, tree: Path, file: str) -> list[str]:
    """What the linter says of the file, line by line; nothing when it is content."""
    if not (tree / file).is_file():
        return []
    extra = () if (tree / linter.config).is_file() else linter.without
    command = [str(programs / linter.run[0]), *linter.run[1:], *extra, file]
    try:
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentSetupError(f"{' '.join(command)} in {tree} cannot be run: {error}") from error
    if done.returncode == 0:
        return []
    said = COLOUR.sub("", f"{done.stdout}\n{done.stderr}")
    return [line.rstrip() for line in said.splitlines() if line.strip()] or [f"exit code {done.returncode}"]


def _take(known: Counter[str], line: str) -> bool:
    known[line] -= 1
    return known[line] >= 0


def _same(line: str) -> str:
    return NUMBERS.sub("#", line)


def _settings(linter: Linter, tree: Path) -> str:
    own = (tree / linter.config).is_file()
    return f"the engine's {linter.config}" if own else f"upstream/rules.toml: this source has no {linter.config}"
