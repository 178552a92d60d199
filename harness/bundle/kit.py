"""Make a kit: resolve, choose files, compress, pack, describe."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from harness.arms.install import locked_packages
from harness.bundle import unpack
from harness.bundle.contents import Dropped, KitFile, source_file, wheel_files
from harness.bundle.parts import plan_parts, write_parts
from harness.bundle.resolve import Choice, choose, choose_for
from harness.bundle.select import TESTS
from harness.bundle.target import Target, wheel_of
from harness.bundle.units import UNIT_BYTES, Unit, make_units
from harness.errors import BundleError, UsageError
from harness.paths import Paths
from harness.pins.index import fetch, fetch_wheel
from harness.pins.model import Pin, Runtime
from harness.progress import Progress
from harness.vocabulary import Device

__all__ = ["Kit", "Request", "make_kit"]

# The environment of a kit that runs the harness, beside those of the engines, and the locked list of what it needs.
HARNESS = "harness"
HARNESS_LIST = "harness.txt"
SMALLEST_PART = UNIT_BYTES + 2_000_000  # one piece that does not compress, and the description


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for. `part_size` is bytes."""

    pins: tuple[Pin, ...]
    target: Target
    part_size: int
    output: Path
    with_tests: bool
    with_sources: bool
    thin: bool
    with_harness: bool = True


@dataclass(frozen=True, slots=True)
class Kit:
    """What was made: the parts, their description (kit.json) and what was not carried, as reason -> bytes."""

    parts: tuple[Path, ...]
    description: dict[str, Any]
    left: dict[str, int]


def make_kit(request: Request, paths: Paths, progress: Progress) -> Kit:
    """Write a kit into the request's folder.

    Raises BundleError, PinError, ArchiveError or UsageError; each says what to do. What was compressed is kept for
    the next try.
    """
    if request.part_size < SMALLEST_PART:
        # said before minutes of compression, not after
        raise UsageError(
            f"--part-size {request.part_size / 1e6:.1f}M is too small: a part is at least {SMALLEST_PART / 1e6:.0f}M"
        )
    choices = {str(pin.engine): _choose(pin, request, paths, progress) for pin in request.pins}
    if request.with_harness:
        choices[HARNESS] = _choose_harness(request, paths, progress)
    wheels = _in_order(choices)
    sources = [_source(pin, paths, progress) for pin in request.pins] if request.with_sources else []
    left = Dropped()
    request.output.mkdir(parents=True, exist_ok=True)
    cache = request.output / ".units"
    units: list[Unit] = []
    for unit in make_units(_files(wheels, sources, request, left, progress), cache, os.cpu_count() or 1):
        units.append(unit)
        so_far = sum(one.size for one in units)
        progress.say(f"{unit.owner}: {unit.raw / 1e6:.1f} MB in {unit.size / 1e6:.1f} MB; {so_far / 1e6:.0f} MB so far")
    plans = plan_parts(units, request.part_size)
    description = _describe(request, choices, wheels, units, [[unit.owner for unit in plan] for plan in plans])
    parts = write_parts(request.output, plans, description)
    shutil.copyfile(unpack.__file__, request.output / "unpack.py")
    used = {unit.stream for unit in units}
    for old in cache.iterdir():
        if old not in used:
            old.unlink()
    return Kit(tuple(parts), description, dict(left.bytes))


def _choose(pin: Pin, request: Request, paths: Paths, progress: Progress) -> Choice:
    runtime = pin.runtime(Device.CUDA)
    if runtime is None:
        raise BundleError(f"{pin.name} has no cuda runtime in upstream/pins.toml, so no kit can hold it")
    listed = locked_packages(paths.requirements / runtime.requirements)
    engine = (runtime.distribution, runtime.version)

    def wheel(name: str, version: str) -> Path:
        return _wheel((name, version), runtime, request.target, paths, progress)

    with progress.step(f"{pin.name}: which of {len(listed)} distributions the host needs"):
        choice = choose(engine, listed, request.target, wheel)
        if not request.with_tests:
            return choice
        known = {**{name: version for name, version in TESTS.items() if version}, **listed}
        wider = choose(engine, known, request.target, wheel, also=[name for name in TESTS if name in known])
        # what only the tests ask of the host is not asked of a host that runs none
        return replace(wider, host=choice.host, tests=frozenset(wider.carried) - frozenset(choice.carried))


def _choose_harness(request: Request, paths: Paths, progress: Progress) -> Choice:
    """What `python -m harness` needs on a host without an index."""
    group = tomllib.loads((paths.root / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"][HARNESS]
    listed = locked_packages(paths.requirements / HARNESS_LIST)

    def wheel(name: str, version: str) -> Path:
        return wheel_of(name, version, request.target, paths, progress)

    with progress.step(f"harness: which of {len(listed)} distributions the host needs"):
        return choose_for(map(Requirement, group), listed, request.target, wheel)


def _wheel(wanted: tuple[str, str], runtime: Runtime, target: Target, paths: Paths, progress: Progress) -> Path:
    name, version = wanted
    if name != runtime.distribution:
        return wheel_of(name, version, target, paths, progress)
    # the pin vouches for the engine's own wheel
    wheel = fetch_wheel(runtime.wheel, runtime.sha256, paths, progress)
    if target.fit(wheel.name) is None:
        raise BundleError(
            f"{wheel.name}, the wheel of the pin, does not run on Python {target.python}; ask for another --python"
        )
    return wheel


def _in_order(choices: dict[str, Choice]) -> list[tuple[str, str, Path]]:
    """Distributions so that what one engine needs lies together: who needs only the first engine carries the first parts."""
    users: dict[tuple[str, str, Path], list[int]] = {}
    for place, choice in enumerate(choices.values()):
        for name, (version, wheel) in choice.carried.items():
            users.setdefault((name, version, wheel), []).append(place)
    return sorted(users, key=lambda one: (min(users[one]), len(users[one]), one[0]))


def _source(pin: Pin, paths: Paths, progress: Progress) -> Path:
    return fetch(pin.archive.project, pin.archive.filename, pin.archive.sha256, paths, progress)


def _files(
    wheels: Sequence[tuple[str, str, Path]], sources: Sequence[Path], request: Request, left: Dropped, progress: Progress
) -> Iterator[tuple[str, KitFile]]:
    for name, version, wheel in wheels:
        progress.say(f"reading {wheel.name}")
        for file in wheel_files(wheel, name, version, request.target, left, thin=request.thin):
            yield f"{name}-{version}", file
    for source in sources:
        yield source.name, source_file(source)


def _named(choice: Choice, *, tests: bool) -> list[str]:
    return sorted(f"{name}-{version}" for name, (version, _) in choice.carried.items() if (name in choice.tests) is tests)


def _environments(request: Request, choices: Mapping[str, Choice]) -> Iterator[tuple[str, str, str | None]]:
    """Name, version and source archive of each environment of the kit."""
    for pin in request.pins:
        yield str(pin.engine), pin.version, pin.archive.filename if request.with_sources else None
    if HARNESS in choices:
        # Of no version: it runs from whatever checkout is on the host.
        yield HARNESS, "", None


def _describe(
    request: Request,
    choices: dict[str, Choice],
    wheels: Sequence[tuple[str, str, Path]],
    units: Sequence[Unit],
    owners: Sequence[Sequence[str]],
) -> dict[str, Any]:
    target = request.target
    wheel_names = {f"{name}-{version}": wheel.name for name, version, wheel in wheels}
    kit: dict[str, Any] = {
        "format": unpack.FORMAT,
        "python": target.python,
        "arch": target.arch,
        "platform": "x86_64-linux",
        "engines": {
            name: {
                "version": version,
                "distributions": _named(choices[name], tests=False),
                "tests": _named(choices[name], tests=True),
                "host": dict(sorted(choices[name].host.items())),
                "left_out": dict(sorted(choices[name].left_out.items())),
                "archive": archive,
            }
            for name, version, archive in _environments(request, choices)
        },
        "distributions": {owner: {"wheel": wheel_names.get(owner)} for owner in dict.fromkeys(unit.owner for unit in units)},
        "parts": [list(dict.fromkeys(part)) for part in owners],
    }
    content = [[file["path"], file["sha256"], file["mode"]] for unit in units for file in unit.files]
    kit["kit"] = hashlib.sha256(json.dumps([kit, content], sort_keys=True).encode()).hexdigest()[:16]
    return kit
