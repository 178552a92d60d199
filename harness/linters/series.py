"""The engine's linters on one pin of a series: trees, programs, files."""

from __future__ import annotations

from pathlib import Path

from harness.linters.run import lint_files
from harness.linters.tools import linter_environment
from harness.paths import Paths
from harness.pins.model import Pin
from harness.progress import Progress
from harness.series.model import Series
from harness.series.patchfile import read_patch
from harness.series.reader import patches_for
from harness.series.rules import Rules
from harness.trees.worktrees import base_tree, patched_tree
from harness.vocabulary import Source

__all__ = ["lint_on_pin"]


def lint_on_pin(
    paths: Paths,
    series: Series,
    pin: Pin,
    rules: Rules,
    progress: Progress,
    *,
    mirror: Path | None = None,
    source: Source | None = None,
) -> tuple[tuple[str, str], ...]:
    """File and complaint of everything that the engine's linters hold against the series on that pin, and not against the pin.

    Raises EnvironmentSetupError when a linter cannot be installed or run, and what making the trees raises.
    """
    base = base_tree(paths, pin, progress=progress, mirror=mirror, source=source)
    patched = patched_tree(paths, pin, series, progress=progress, mirror=mirror, source=source)
    files = sorted({change.path for patch in patches_for(series, pin.version) for change in read_patch(patch).changes})
    programs = linter_environment(paths, sorted({linter.package for linter in rules.linters}), progress)
    return tuple(lint_files(programs, rules.linters, base.path, patched.path, files))
