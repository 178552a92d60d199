"""The host that a kit is for, and the wheels that fit it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from harness.bundle.select import normalised
from harness.errors import BundleError, UsageError
from harness.names import nearest
from harness.paths import Paths
from harness.pins.download import is_file_with
from harness.pins.index import Found, fetch, find
from harness.progress import Progress

__all__ = ["Target", "read_have", "wheel_of"]

# The oldest C library that a kit runs on (Ubuntu 22.04); SGLang's wheel asks for 2.34.
GLIBC = (2, 35)
PYTHONS = ("3.11", "3.12")
# Compute capabilities of GPUs that the engines' wheels have code for.
ARCHITECTURES = ("8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0")
ALIASES = {(2, 5): "manylinux1", (2, 12): "manylinux2010", (2, 17): "manylinux2014"}


@dataclass(frozen=True)
class Target:
    """Python ("3.12"), compute capability ("9.0"), and what the host has already (normalised name -> version)."""

    python: str
    arch: str
    have: dict[str, str]

    def __post_init__(self) -> None:
        if self.python not in PYTHONS:
            raise UsageError(f"no kit can be made for Python {self.python}: the engines' pins run on {' and '.join(PYTHONS)}")
        if self.arch not in ARCHITECTURES:
            raise UsageError(
                f"{self.arch!r} is no compute capability that the pinned wheels have code for. "
                f"{nearest(self.arch, ARCHITECTURES)} (nvidia-smi --query-gpu=compute_cap --format=csv prints a host's)"
            )

    @property
    def major(self) -> int:
        return int(self.arch.partition(".")[0])

    @property
    def architecture(self) -> int:
        """90 for "9.0", as compilers number it."""
        return int(self.arch.replace(".", ""))

    @property
    def markers(self) -> dict[str, str]:
        """What the environment markers of a requirement see on the host."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": "x86_64",
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }

    @cached_property
    def rank(self) -> dict[Tag, int]:
        """Tags of wheels that run on the host, the best first."""
        version = tuple(int(part) for part in self.python.split("."))
        platforms = list(_platforms())
        tags = [*cpython_tags(version, platforms=platforms)]
        tags += compatible_tags(version, interpreter=f"cp{version[0]}{version[1]}", platforms=platforms)
        return {tag: place for place, tag in reversed(list(enumerate(tags)))}

    def fit(self, filename: str) -> int | None:
        """How well a wheel fits (smaller is better); None when it does not run on the host."""
        try:
            _, _, _, tags = parse_wheel_filename(filename)
        except InvalidWheelFilename:
            return None
        return min((self.rank[tag] for tag in tags if tag in self.rank), default=None)


def _platforms() -> Iterator[str]:
    for minor in range(GLIBC[1], 4, -1):
        yield f"manylinux_2_{minor}_x86_64"
        if (2, minor) in ALIASES:
            yield f"{ALIASES[2, minor]}_x86_64"
    yield "linux_x86_64"


def wheel_of(name: str, version: str, target: Target, paths: Paths, progress: Progress) -> Path:
    """The wheel of a distribution that fits the host best, fetched from the user's index or found in the archives.

    Raises BundleError when no wheel fits, PinError when the index does not answer, ArchiveError when a download goes wrong.
    """
    # a name that pip once asked for on this machine needs no look at the index
    stem = f"{normalised(name).replace('-', '_')}-{version}-"
    there = [path for path in paths.archives.glob("*.whl") if _stem(path.name) == stem and target.fit(path.name) is not None]
    if there:
        return min(there, key=lambda path: target.fit(path.name) or 0)
    files = [one for one in find(name) if one.version == version and not (one.yanked and not one.sha256)]
    ranked = sorted((place, one.filename, one) for one in files if (place := target.fit(one.filename)) is not None)
    if not ranked:
        offered = ", ".join(one.filename for one in files) or "no file of that version"
        raise BundleError(
            f"{name} {version} has no wheel for Python {target.python} on x86_64 Linux with glibc {GLIBC[0]}.{GLIBC[1]}; "
            f"the index offers {offered}. Change its line in upstream/requirements."
        )
    return _fetched(ranked[0][2], paths, progress)


def _fetched(found: Found, paths: Paths, progress: Progress) -> Path:
    if found.sha256 is None:
        raise BundleError(
            f"the index gives no sha256 for {found.filename}, so a kit cannot vouch for it. Use an index that does."
        )
    target = paths.archives / found.filename
    if is_file_with(target, found.sha256):
        return target
    progress.say(f"fetching {found.filename}")
    return fetch(found.project, found.filename, found.sha256, paths, progress)


def _stem(filename: str) -> str:
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return ""
    return f"{normalised(name).replace('-', '_')}-{version}-"


def read_have(path: Path) -> dict[str, str]:
    """A host's packages from `pip list` or `pip freeze` output: normalised name -> version.

    Raises UsageError when the file cannot be read or a line is neither.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--have {path} cannot be read ({error}). "
            "Write it on the host with `python3 -m pip list --format=freeze > have.txt`."
        ) from error
    have: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text or re.fullmatch(r"-[- ]*|Package\s+Version.*", text):
            continue
        name = r"([A-Za-z0-9][A-Za-z0-9._-]*)"
        match = re.match(rf"(?:-e\s+)?{name}(?:\s*==\s*|\s+)([0-9][A-Za-z0-9.+!_-]*)(?:\s|$)", text)
        at = re.match(rf"{name}\s*@\s", text)
        if match:
            have[normalised(match[1])] = match[2]
        elif at is None:
            raise UsageError(
                f"--have {path}:{number}: {line.strip()!r} is neither NAME==VERSION (pip freeze) nor NAME VERSION (pip list)"
            )
    if not have:
        raise UsageError(f"--have {path} names no package. Write it on the host with `python3 -m pip list --format=freeze`.")
    return have
