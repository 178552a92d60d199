"""Pin a release: find its archive on the index, read what it requires, and write it into upstream/pins.toml."""

from __future__ import annotations

import bisect
import os
import re
import tarfile
import tempfile
import zipfile
from pathlib import Path

import tomlkit
from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.errors import ArchiveError, PinError, UnknownPinError
from harness.names import nearest
from harness.paths import Paths
from harness.pins.index import Found, fetch, fetch_unknown, find
from harness.pins.model import ArchiveKind, Pin
from harness.pins.reader import Pins, archive_kind, read_pins
from harness.progress import Progress
from harness.vocabulary import Engine, PinRole

__all__ = ["PROJECTS", "add_pin", "choose_archive", "insert_pin", "read_requirements"]

# Name of each engine on the package index.
PROJECTS = {Engine.VLLM: "vllm", Engine.SGLANG: "sglang", Engine.FLASHINFER: "flashinfer-python"}
# SGLang publishes its source as wheels only; this one is taken whatever Python runs, so that every machine has the same.
WHEEL_OF = {Engine.SGLANG: re.compile(r".*-cp312-cp312-manylinux\w*_x86_64\.whl")}
PREFIXES = {Engine.SGLANG: "python/"}
HEADER = re.compile(r"\s*\[+\s*(\w+)\s*\.")


def add_pin(paths: Paths, engine: Engine, version: str, progress: Progress, *, torch: str | None = None) -> Pin:
    """Add a release as an extra pin and return it; the file's comments and order stay.

    `torch` is for a release that asks for no particular one. Raises PinError: pinned already, unknown version (the nearest are
    named), no archive of the right kind, no torch version known; ArchiveError.
    """
    pins = read_pins(paths.pins_file)
    if any(pin.version == version for pin in pins.of(engine)):
        raise PinError(f"{engine} {version} is pinned already, in {paths.pins_file}")
    found = choose_archive(engine, version, find(PROJECTS[engine]))
    if found.sha256 is None:
        archive, sha256 = fetch_unknown(found, paths, progress)
    else:
        archive, sha256 = fetch(found.project, found.filename, found.sha256, paths, progress), found.sha256
    asked_torch, requires = read_requirements(archive)
    settled = torch or asked_torch or _torch_of(pins, engine, progress)
    block = _block(engine, version, pins, {"torch": settled, "requires": requires, "file": found.filename, "sha256": sha256})
    insert_pin(paths.pins_file, engine, block)
    return read_pins(paths.pins_file).find(engine, version)


def choose_archive(engine: Engine, version: str, files: tuple[Found, ...]) -> Found:
    """The file of that version that holds the engine's source.

    Raises UnknownPinError, with the nearest versions, when there is no such release, and PinError when it has no such file.
    """
    named = [one for one in files if one.version == version]
    if not named:
        raise UnknownPinError(
            f"{PROJECTS[engine]} {version} is not on the index. {_neighbours(version, {one.version for one in files})}"
        )
    pattern = WHEEL_OF.get(engine)
    for one in named:
        if pattern.fullmatch(one.filename) if pattern else archive_kind(one.filename) is ArchiveKind.SDIST:
            return one
    want = "cp312 wheel for Linux x86_64" if pattern else "sdist (.tar.gz)"
    raise PinError(f"{PROJECTS[engine]} {version} has no {want} on the index, only: {', '.join(one.filename for one in named)}")


def read_requirements(archive: Path) -> tuple[str | None, tuple[str, ...]]:
    """The torch version that a release is bound to (None when to none), and its requirements on other engines."""
    raw, _ = parse_email(_metadata(archive))
    own = canonicalize_name(raw.get("name", ""))
    engines = set(PROJECTS.values()) - {own}
    torch, requires = None, []
    for text in raw.get("requires_dist", []):
        requirement = Requirement(text)
        if requirement.marker is not None and "extra" in str(requirement.marker):
            continue
        name = canonicalize_name(requirement.name)
        exact = [one.version for one in requirement.specifier if one.operator == "=="]
        if name == "torch" and exact:
            torch = exact[0].partition("+")[0]
        elif name in engines:
            extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
            requires.append(f"{name}{extras}{requirement.specifier}")
    return torch, tuple(requires)


def insert_pin(path: Path, engine: Engine, block: str) -> None:
    """Put a pin's tables after the engine's last one. Nothing else of the file changes, and a kill leaves the old one."""
    before = read_pins(path)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    owner, end = "", len(lines)
    for number, line in enumerate(lines, start=1):
        header = HEADER.match(line)
        owner = header[1] if header else owner
        # Comments before the next table belong to that one.
        if owner == engine and line.strip() and not line.lstrip().startswith("#"):
            end = number
    if end and not lines[end - 1].endswith("\n"):
        lines[end - 1] += "\n"
    text = "".join([*lines[:end], "\n", block, *lines[end:]])
    descriptor, name = tempfile.mkstemp(prefix=".pins-", suffix=".toml", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if not set(before.pins) < set(read_pins(temporary).pins):
            raise PinError(f"{path} has a form that a pin cannot be added to; add it by hand:\n{block}")
        temporary.chmod(path.stat().st_mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _neighbours(version: str, known: set[str]) -> str:
    """Help for a version that does not exist: those before and after it, by the order of versions and not of letters."""
    try:
        wanted = Version(version)
    except InvalidVersion:
        return nearest(version, known)
    ordered = sorted(Version(one) for one in known)
    place = bisect.bisect(ordered, wanted)
    return "The nearest are " + ", ".join(str(one) for one in ordered[max(place - 2, 0) : place + 2]) + "."


def _metadata(archive: Path) -> bytes:
    wheel = archive_kind(archive.name) is ArchiveKind.WHEEL
    pattern = re.compile(r"[^/]+\.dist-info/METADATA" if wheel else r"[^/]+/PKG-INFO")
    try:
        if wheel:
            with zipfile.ZipFile(archive) as opened:
                return next(opened.read(name) for name in opened.namelist() if pattern.fullmatch(name))
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isfile() and pattern.fullmatch(member.name) else None
                if content is not None:
                    return content.read()
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, StopIteration) as error:
        raise ArchiveError(f"{archive} has no readable metadata: {error}. Delete it; it is fetched again.") from error
    raise ArchiveError(f"{archive} has no PKG-INFO, so it is not an sdist")


def _torch_of(pins: Pins, engine: Engine, progress: Progress) -> str:
    head = next((pin for pin in pins.of(engine) if pin.role is PinRole.HEAD), None)
    if head is None:
        raise PinError(f"this release of {engine} asks for no particular torch; say which one it is run with: --torch VERSION")
    progress.warn(
        f"this release of {engine} asks for no particular torch; {head.torch} of {head.name} is recorded (or: --torch)"
    )
    return head.torch


def _block(engine: Engine, version: str, pins: Pins, facts: dict[str, object]) -> str:
    known = pins.of(engine)
    if not known:
        raise PinError(f"{pins.path} has no pin of {engine} whose git URL could be taken over; add its first one by hand")
    pin = tomlkit.table()
    pin["role"] = PinRole.EXTRA.value
    pin["git"] = known[-1].git_url
    pin["tag"] = f"v{version}"
    pin["torch"] = facts["torch"]
    pin["requires"] = list(facts["requires"]) if isinstance(facts["requires"], tuple) else []
    archive = tomlkit.table()
    archive["project"] = PROJECTS[engine]
    archive["file"] = facts["file"]
    archive["sha256"] = facts["sha256"]
    if engine in PREFIXES:
        archive["prefix"] = PREFIXES[engine]
    pin["archive"] = archive
    versions = tomlkit.table(is_super_table=True)
    versions[version] = pin
    document = tomlkit.document()
    document[engine.value] = versions
    return tomlkit.dumps(document)
