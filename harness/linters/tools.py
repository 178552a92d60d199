"""A virtual environment with the pinned linters of one engine, made once."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from harness.errors import EnvironmentSetupError
from harness.paths import Paths
from harness.progress import Progress

__all__ = ["linter_environment"]

TIMEOUT = 900.0  # seconds for pip on a slow line


def linter_environment(paths: Paths, packages: Sequence[str], progress: Progress) -> Path:
    """The folder with the programs of these packages ("ruff==0.14.0"). It is named for them, so other versions are another one.

    Raises EnvironmentSetupError with what pip said.
    """
    name = "lint-" + hashlib.sha256("\n".join(sorted(packages)).encode()).hexdigest()[:12]
    folder = paths.environments / name
    # programs name the interpreter by its place, so the environment is made where it stays, and marked when it is whole
    whole = folder / "complete"
    paths.environments.mkdir(parents=True, exist_ok=True)
    with FileLock(paths.environments / f"{name}.lock"):
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            with progress.step(f"installing {', '.join(packages)}"):
                _run([sys.executable, "-m", "venv", str(folder)])
                pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
                _run([*pip, "install", "--quiet", *packages])
            whole.touch()
    return folder / "bin"


def _run(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip()
        raise EnvironmentSetupError(f"the engine's linters cannot be installed: {said[-600:]}") from error
