"""One bench environment for each engine pin and device: made once, marked complete, then reused at once."""

from __future__ import annotations

import dataclasses
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

from harness.arms.install import check_torch, installed, locked_packages, make_venv, pip_install, visible, write_identity
from harness.arms.kit import Kit, adopt_archives, copy_wheel, find_kit, make_kit_venv
from harness.arms.model import Environment
from harness.arms.probes import Machine, cpu_probes, cuda_probes, read_machine, require
from harness.errors import EnvironmentSetupError
from harness.files import write_atomically
from harness.paths import Paths
from harness.pins.index import fetch_wheel
from harness.pins.model import Pin, Runtime
from harness.progress import Progress
from harness.trees.archive import unpack
from harness.trees.use import removing, using
from harness.vocabulary import Device, Engine

__all__ = ["environment_name", "prepare_environment", "with_wheel"]

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

    `machine` is what the probes judge (default: read from this machine). For a GPU, UPKERNEL_KIT names the unpacked kit that
    it is made of; without that, pip installs it from the index.

    Raises ProbeError when the machine lacks something (all of it is listed, before any download), EnvironmentSetupError when
    the pin has no runtime for the device, the list is malformed, pip fails, the kit does not fit, or a changed environment is
    still in use.
    """
    runtime = pin.runtime(device)
    if runtime is None:
        has = ", ".join(one.device for one in pin.runtimes) or "none"
        raise EnvironmentSetupError(
            f"{pin.name} has no environment for the device {device} (it has: {has}). Runtimes stand in upstream/pins.toml."
        )
    kit = find_kit() if device is Device.CUDA else None
    folder = paths.environments / environment_name(pin, device)
    about = (pin.engine, device)
    recipe = _recipe(paths, pin, runtime, kit)
    with _locked(folder, progress):
        ready = _reusable(paths, folder, about, recipe, progress)
        if ready is None:
            found = machine or read_machine(paths.environments)
            probes = cpu_probes(found) if device is Device.CPU else cuda_probes(found, kit=kit is not None)
            require(probes, f"{pin.name} on {'a CPU' if device is Device.CPU else 'a GPU'}")
            # Held, because a half-made one is nothing that cleaning would spare by itself.
            held = using(paths, [folder, _log(folder), paths.archives])
            with held, progress.step(f"{folder.name}: {_effort(device, kit)}"):
                ready = _make(folder, pin, runtime, recipe, paths=paths, progress=progress, kit=kit)
    if kit is not None:
        adopt_archives(kit, paths)
    return ready


def _effort(device: Device, kit: Kit | None) -> str:
    if kit is not None:
        return f"environment from the kit in {kit.folder} (under a minute, once)"
    return f"installing the environment ({'3 minutes, 5 GB' if device is Device.CPU else '10 minutes, 15 GB'}, once)"


def with_wheel(paths: Paths, environment: Environment, pin: Pin, progress: Progress) -> Environment:
    """The same environment, with the wheel of another engine from which a tree of `pin` is completed.

    Raises EnvironmentSetupError when that pin has no runtime for the device or the kit has no such wheel.
    """
    if pin.engine in environment.wheels:
        return environment
    runtime = pin.runtime(environment.device)
    if runtime is None:
        raise EnvironmentSetupError(f"{pin.name} has no runtime for {environment.device} that an arm could combine")
    folder = environment.prefix.parent
    target = folder / f"wheel-{pin.name}-{runtime.sha256[:12]}"
    with _locked(folder, progress):
        if not target.is_dir():
            half_made = target.with_name(f".{target.name}")
            shutil.rmtree(half_made, ignore_errors=True)
            _unpack_wheel(half_made, runtime, find_kit(), paths, progress)
            half_made.rename(target)
    return dataclasses.replace(environment, wheels={**environment.wheels, pin.engine: target})


def _recipe(paths: Paths, pin: Pin, runtime: Runtime, kit: Kit | None) -> dict[str, Any]:
    """Everything that decides what the environment holds."""
    made = None if kit is None else kit.made(pin)
    return {
        "layout": LAYOUT,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "interpreter": os.path.realpath(sys.executable if made is None else made["python"]),
        "packages": dict(locked_packages(paths.requirements / runtime.requirements)) if made is None else made["distributions"],
        "wheel": runtime.sha256,
        "identity": f"{runtime.distribution}=={runtime.version}",
        # A key only where there is a kit: environments of before there were kits stay as they are.
        **({} if kit is None else {"kit": kit.digest}),
    }


def _reusable(
    paths: Paths, folder: Path, about: tuple[Engine, Device], recipe: Mapping[str, Any], progress: Progress
) -> Environment | None:
    """The environment in `folder`; otherwise says why it is made again, removes it and returns None."""
    if not folder.exists():
        return None
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        why = "an earlier installation did not finish"
    else:
        before = marker.get("recipe", {})
        changed = sorted(key for key in recipe.keys() | before.keys() if before.get(key) != recipe.get(key))
        packages = _packages(folder, recipe)
        if changed:
            why = f"its {' and '.join(changed)} changed"
        elif packages != marker["packages"]:
            why = f"somebody changed its packages since ({_difference(marker['packages'], packages)})"
        elif not (folder / "venv" / "bin" / "python").exists() or not (folder / "wheel").is_dir():
            why = "parts of it are missing"
        else:
            return _environment(folder, about, packages, recipe)
    progress.warn(f"the environment {folder.name} is made again: {why}")
    _remove(paths, folder)
    return None


def _difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    shown = [f"{name} {before.get(name, 'absent')} -> {now.get(name, 'absent')}" for name in names[:3]]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _make(
    folder: Path, pin: Pin, runtime: Runtime, recipe: Mapping[str, Any], *, paths: Paths, progress: Progress, kit: Kit | None
) -> Environment:
    # A virtual environment cannot be moved once made, so it is made in place, and the marker says when it is whole.
    folder.mkdir(parents=True)
    if kit is None:
        requirements = paths.requirements / runtime.requirements
        with progress.step(f"virtual environment of Python {platform.python_version()}"):
            python = make_venv(folder / "venv")
        with progress.step(f"pip: {len(recipe['packages'])} packages of {requirements.name}"):
            pip_install(python, requirements, _log(folder), progress)
    else:
        with progress.step(f"virtual environment of {len(recipe['packages'])} distributions of the kit"):
            python = make_kit_venv(folder / "venv", kit, pin, runtime)
    _unpack_wheel(folder / "wheel", runtime, kit, paths, progress)
    write_identity(folder / "venv", folder / "wheel", runtime)
    with progress.step("first import of torch"):
        check_torch(python, pin.torch, folder / "bytecode")
    packages = _packages(folder, recipe)
    wanted = recipe["packages"] if kit is None else {}
    wrong = {name: version for name, version in wanted.items() if packages.get(name) != version}
    if wrong:
        raise EnvironmentSetupError(f"pip reported success, but {folder} lacks {wrong}; it has {packages}")
    marker = {"recipe": dict(recipe), "packages": dict(packages)}
    write_atomically(folder / MARKER, json.dumps(marker, indent=1, sort_keys=True), EnvironmentSetupError)
    return _environment(folder, (pin.engine, runtime.device), packages, recipe)


def _unpack_wheel(target: Path, runtime: Runtime, kit: Kit | None, paths: Paths, progress: Progress) -> None:
    with progress.step(f"compiled and generated files of {runtime.wheel}"):
        if kit is None:
            unpack(fetch_wheel(runtime.wheel, runtime.sha256, paths, progress), target)
        else:
            copy_wheel(kit, runtime, target)


def _packages(folder: Path, recipe: Mapping[str, Any]) -> Mapping[str, str]:
    """The distributions that an engine finds; an environment made of a kit lies over the host's, which count as well."""
    return visible(folder / "venv" / "bin" / "python") if "kit" in recipe else installed(folder / "venv")


def _log(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


def _environment(
    folder: Path, about: tuple[Engine, Device], packages: Mapping[str, str], recipe: Mapping[str, Any]
) -> Environment:
    engine, device = about
    decisive = [recipe["python"], dict(packages), recipe["wheel"], recipe["identity"]]
    content = json.dumps([*decisive, recipe["kit"]] if "kit" in recipe else decisive, sort_keys=True)
    return Environment(
        name=folder.name,
        device=device,
        prefix=folder / "venv",
        python=folder / "venv" / "bin" / "python",
        wheels={engine: folder / "wheel"},
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
