"""The steps that make a bench environment: venv, locked packages, the unpacked runtime wheel, the engine's identity."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

from harness.errors import EnvironmentSetupError
from harness.pins.model import Runtime
from harness.progress import Progress, duration

__all__ = [
    "check_torch",
    "clean_environment",
    "installed",
    "locked_packages",
    "make_venv",
    "pip_install",
    "visible",
    "write_identity",
]

TAIL_LINES = 15
SAY_EVERY = 15.0  # seconds between progress lines of pip
# Settings of pip that would put packages elsewhere than into the environment, or none at all.
HARMFUL_PIP = frozenset(
    {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_DRY_RUN", "PIP_REQUIRE_HASHES", "PIP_NO_INDEX"}
)


def locked_packages(path: Path) -> Mapping[str, str]:
    """The file's `name==version` lines, by normalised name.

    Raises EnvironmentSetupError when the file is missing or a line pins nothing.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise EnvironmentSetupError(
            f"the locked dependency list {path} cannot be read ({error.strerror}). "
            "Restore it with git, or name another one for this pin in upstream/pins.toml."
        ) from error
    packages: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.+!_-]+)", text)
        if match is None:
            raise EnvironmentSetupError(f"{path}:{number}: {text!r} is not NAME==VERSION; every package must be locked")
        packages[normalised(match[1])] = match[2]
    return packages


def normalised(name: str) -> str:
    """A distribution's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def clean_environment() -> dict[str, str]:
    """The environment of this process without what would lead another interpreter, or pip, astray."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "VIRTUAL_ENV")) and key not in HARMFUL_PIP
    }


def make_venv(prefix: Path) -> Path:
    """A virtual environment of the running interpreter, with pip; returns its python."""
    try:
        venv.EnvBuilder(with_pip=True, symlinks=True).create(prefix)
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.output.decode(errors="replace").strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        raise EnvironmentSetupError(
            f"no virtual environment can be made in {prefix} with {sys.executable}: {said or error}. "
            "`nox -s doctor` looks for the usual reasons."
        ) from error
    return prefix / "bin" / "python"


def pip_install(python: Path, requirements: Path, log: Path, progress: Progress) -> None:
    """Install the locked list, and nothing else, through the user's pip settings; what pip says goes to `log`.

    No bytecode is made here: processes of an arm keep theirs elsewhere (PYTHONPYCACHEPREFIX), for modules they use alone.

    Raises EnvironmentSetupError with the end of the log.
    """
    total = len(locked_packages(requirements))
    command = [str(python), "-m", "pip", "install", "--no-deps", "--only-binary", ":all:", "--no-compile", "--no-input"]
    command += ["--progress-bar", "off", "--disable-pip-version-check", "--no-warn-script-location", "-r", str(requirements)]
    start = time.monotonic()
    # pip unpacks gigabytes before it installs them: on the disk that was probed, not on a /tmp that may be memory.
    with log.open("w", encoding="utf-8") as output, tempfile.TemporaryDirectory(prefix=".pip-", dir=log.parent) as space:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**clean_environment(), "TMPDIR": space},
            cwd=log.parent,
        )
        try:
            status = _wait(process, log, total, start, progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if status != 0:
        raise EnvironmentSetupError(
            f"pip could not install {requirements.name} (exit status {status}, after {duration(time.monotonic() - start)}). "
            f"The end of {log}:\n{_tail(log)}\nNothing is kept; run the command again once the cause is mended."
        )


def _wait(process: subprocess.Popen[bytes], log: Path, total: int, start: float, progress: Progress) -> int:
    while True:
        try:
            return process.wait(timeout=SAY_EVERY)
        except subprocess.TimeoutExpired:
            text = log.read_text(encoding="utf-8", errors="replace")
            collected = text.count("\nCollecting ") + text.startswith("Collecting ")
            doing = "installing" if "Installing collected packages" in text else f"{collected} of {total} packages fetched"
            progress.say(f"pip: {doing}, {duration(time.monotonic() - start)}")


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
    return "\n".join(f"  | {line[:300]}" for line in lines)


def site_packages(prefix: Path) -> Path:
    """Where the environment's packages lie (it is made by an interpreter of the running version)."""
    return prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def installed(prefix: Path) -> Mapping[str, str]:
    """Distributions in the environment, normalised name -> version, read from its own metadata."""
    found = {normalised(one.name): one.version for one in distributions(path=[str(site_packages(prefix))])}
    return dict(sorted(found.items()))


VISIBLE = """
import importlib.metadata as metadata, json
# the first found of a name is the one that is imported
found = {}
for one in metadata.distributions():
    found.setdefault(one.metadata["Name"], one.version)
print(json.dumps({name: version for name, version in found.items() if name}))
"""


def visible(python: Path) -> Mapping[str, str]:
    """Every distribution that an interpreter finds, normalised name -> version, those of the host's environment included.

    Raises EnvironmentSetupError when it does not start.
    """
    try:
        ran = subprocess.run(
            [str(python), "-I", "-c", VISIBLE], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise EnvironmentSetupError(f"{python} cannot be started: {error.strerror}") from error
    if ran.returncode:
        raise EnvironmentSetupError(f"{python} does not start: {ran.stderr.strip()[-1500:]}")
    return dict(sorted((normalised(name), version) for name, version in json.loads(ran.stdout).items()))


def write_identity(prefix: Path, wheel: Path, runtime: Runtime) -> None:
    """What makes the engine in a tree believe that it is installed: its metadata with entry points, and its commands.

    The metadata stands in site-packages and again in the folder `identity`, which an arm puts before its tree: a checkout
    that was once built in place holds an `.egg-info` with another version.
    """
    entry_points = next(iter(wheel.glob("*.dist-info/entry_points.txt")), None)
    scripts = entry_points.read_text(encoding="utf-8") if entry_points else ""
    for folder in (site_packages(prefix), prefix.parent / "identity"):
        metadata = folder / f"{runtime.distribution}-{runtime.version}.dist-info"
        metadata.mkdir(parents=True, exist_ok=True)
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {runtime.distribution}\nVersion: {runtime.version}\n"
            "Summary: stands in for the engine, whose files come from a tree of upkernel\n",
            encoding="utf-8",
        )
        (metadata / "INSTALLER").write_text("upkernel\n", encoding="utf-8")
        (metadata / "entry_points.txt").write_text(scripts, encoding="utf-8")
    for name, module, function in _console_scripts(scripts):
        script = prefix / "bin" / name
        script.write_text(
            f"#!{prefix / 'bin' / 'python'}\nimport sys\n\nfrom {module} import {function}\n\n"
            f'if __name__ == "__main__":\n    sys.exit({function}())\n',
            encoding="utf-8",
        )
        script.chmod(0o755)


def _console_scripts(entry_points: str) -> list[tuple[str, str, str]]:
    section = ""
    found = []
    for line in entry_points.splitlines():
        if line.startswith("["):
            section = line.strip("[] \t")
        match = re.fullmatch(r"\s*([\w.-]+)\s*=\s*([\w.]+)\s*:\s*(\w+)\s*", line)
        if section == "console_scripts" and match:
            found.append((match[1], match[2], match[3]))
    return found


def check_torch(python: Path, version: str, bytecode: Path) -> None:
    """Import torch once: a missing shared library shows here, and not minutes later in an engine's log.

    Raises EnvironmentSetupError with what Python said.
    """
    variables = clean_environment() | {"PYTHONPYCACHEPREFIX": str(bytecode), "PYTHONNOUSERSITE": "1"}
    result = subprocess.run(
        [str(python), "-P", "-c", "import torch; print(torch.__version__)"],
        capture_output=True, text=True, check=False, env=variables, cwd=python.parent, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    found = result.stdout.strip()
    if result.returncode != 0 or found.partition("+")[0] != version:
        raise EnvironmentSetupError(
            f"torch {version} does not work in the new environment: it says {found or 'nothing'} and\n"
            f"{result.stderr.strip()[-1500:]}"
        )
