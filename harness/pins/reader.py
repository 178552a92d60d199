"""Read upstream/pins.toml. Every complaint names the file, the pin and the field."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from harness.errors import PinError
from harness.names import nearest
from harness.pins.model import Archive, ArchiveKind, Pin, Runtime
from harness.vocabulary import Device, Engine, PinRole

__all__ = ["Pins", "archive_kind", "read_pins"]

E = TypeVar("E", bound=StrEnum)

SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True)
class Pins:
    """Every pin of the file, in its order."""

    path: Path
    pins: tuple[Pin, ...]

    def of(self, engine: Engine) -> tuple[Pin, ...]:
        """The pins of one engine."""
        return tuple(pin for pin in self.pins if pin.engine is engine)

    def find(self, engine: Engine, name: str) -> Pin:
        """The pin with this version, or of this role ("bench", "head"). Raises PinError with the nearest names."""
        known = self.of(engine)
        for pin in known:
            if name == pin.version or (name == pin.role and pin.role is not PinRole.EXTRA):
                return pin
        names = [PinRole.BENCH.value, PinRole.HEAD.value, *(pin.version for pin in known)]
        raise PinError(
            f"there is no {engine} pin {name!r} in {self.path}. {nearest(name, names)} "
            f"(a release is added with: nox -s pin -- {engine} VERSION)"
        )


def read_pins(path: Path) -> Pins:
    """Raises PinError: no such file, not TOML (with the line), a field that is missing, malformed or unknown."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise PinError(f"{path} does not exist; it lists the pinned releases and comes with the checkout") from error
    except (OSError, UnicodeDecodeError) as error:
        raise PinError(f"{path} cannot be read: {error}") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PinError(f"{path} is not valid TOML: {error}") from error
    pins: list[Pin] = []
    for key, versions in document.items():
        if key not in set(Engine):
            raise PinError(f"{path}: table [{key}] is no engine. {nearest(key, Engine)}")
        if not isinstance(versions, dict):
            raise PinError(f'{path}: {key} must be tables named [{key}."VERSION"], found {versions!r}')
        pins += [_pin(path, Engine(key), version, table) for version, table in versions.items()]
    _one_of_each_role(path, pins)
    return Pins(path, tuple(pins))


def archive_kind(filename: str) -> ArchiveKind | None:
    """What kind of archive a file name means; None when it is neither an sdist nor a wheel."""
    if filename.endswith(".whl"):
        return ArchiveKind.WHEEL
    return ArchiveKind.SDIST if filename.endswith(".tar.gz") else None


class _Table:
    """One table, read field by field."""

    def __init__(self, place: str, table: object) -> None:
        if not isinstance(table, dict):
            raise PinError(f"{place} must be a table, found {table!r}")
        self.place = place
        self.rest: dict[str, Any] = dict(table)

    def wrong(self, field: str, value: object, want: str) -> PinError:
        return PinError(f"{self.place}: field {field!r} is malformed: it must be {want}, found {value!r}")

    def take(self, field: str, want: str) -> Any:
        if field not in self.rest:
            raise PinError(f"{self.place}: field {field!r} is missing; it must be {want}")
        return self.rest.pop(field)

    def text(self, field: str, want: str, pattern: re.Pattern[str] | None = None) -> str:
        value = self.take(field, want)
        if not isinstance(value, str) or not value.strip() or (pattern and not pattern.fullmatch(value)):
            raise self.wrong(field, value, want)
        return value

    def word(self, field: str, words: type[E]) -> E:
        want = "one of " + ", ".join(words)
        value = self.text(field, want)
        if value not in set(words):
            raise self.wrong(field, value, want)
        return words(value)

    def version(self, field: str) -> str:
        value = self.text(field, "a version like 2.11.0")
        if not _is_version(value):
            raise self.wrong(field, value, "a version like 2.11.0")
        return value

    def finish(self) -> None:
        if self.rest:
            raise PinError(
                f"{self.place}: unknown field(s) {', '.join(sorted(self.rest))}; see the comment at the top of the file"
            )


def _pin(path: Path, engine: Engine, version: str, raw: object) -> Pin:
    place = f"{path}: pin {engine} {version}"
    # [vllm.0.24] is TOML for a table 24 in a table 0
    nested = isinstance(raw, dict) and "role" not in raw and bool(raw) and all(isinstance(one, dict) for one in raw.values())
    if nested or not _is_version(version):
        raise PinError(f'{path}: [{engine}.{version}] is not named for a version; write it in quotes, like [{engine}."0.24.0"]')
    table = _Table(place, raw)
    pin = Pin(
        engine=engine,
        version=version,
        role=table.word("role", PinRole),
        git_url=table.text("git", "the URL of the git repository"),
        tag=table.text("tag", "the name of the release's tag"),
        commit=table.text("commit", "7 to 40 hexadecimal digits", COMMIT) if "commit" in table.rest else None,
        archive=_archive(place, table.take("archive", "a table with project, file and sha256")),
        torch=table.version("torch"),
        requires=_requires(table),
        runtimes=_runtimes(table, place),
    )
    table.finish()
    return pin


def _archive(place: str, raw: object) -> Archive:
    table = _Table(f"{place}, archive", raw)
    want = "a file name that ends with .tar.gz or .whl"
    filename = table.text("file", want)
    kind = archive_kind(filename)
    if kind is None or "/" in filename:
        raise table.wrong("file", filename, want)
    prefix = ""
    if "prefix" in table.rest:
        want = "a folder inside the repository that ends with /, like python/"
        prefix = table.text("prefix", want)
        parts = PurePosixPath(prefix).parts
        if not prefix.endswith("/") or prefix.startswith("/") or ".." in parts or "\\" in prefix:
            raise table.wrong("prefix", prefix, want)
    archive = Archive(
        project=table.text("project", "the project's name on the package index"),
        filename=filename,
        sha256=table.text("sha256", "64 hexadecimal digits", SHA256),
        kind=kind,
        prefix=prefix,
    )
    table.finish()
    return archive


def _requires(table: _Table) -> tuple[str, ...]:
    want = "a list of requirements like flashinfer-python==0.6.12"
    value = table.take("requires", want)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise table.wrong("requires", value, want)
    for one in value:
        try:
            Requirement(one)
        except InvalidRequirement as error:
            raise table.wrong("requires", one, f"{want} ({error})") from error
    return tuple(value)


def _runtimes(table: _Table, place: str) -> tuple[Runtime, ...]:
    raw = table.rest.pop("runtimes", [])
    if not isinstance(raw, list):
        raise table.wrong(
            "runtimes", raw, "a list of tables, each with device, wheel, sha256, requirements, distribution, version"
        )
    runtimes = tuple(_runtime(f"{place}, runtime {number}", one) for number, one in enumerate(raw, start=1))
    devices = [runtime.device for runtime in runtimes]
    if len(set(devices)) < len(devices):
        raise table.wrong("runtimes", [str(one) for one in devices], "at most one for each device")
    return runtimes


def _runtime(place: str, raw: Mapping[str, Any]) -> Runtime:
    table = _Table(place, raw)
    runtime = Runtime(
        device=table.word("device", Device),
        wheel=table.text("wheel", "PROJECT==VERSION", re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+")),
        sha256=table.text("sha256", "64 hexadecimal digits", SHA256),
        requirements=table.text("requirements", "a file name in upstream/requirements", re.compile(r"[A-Za-z0-9._-]+\.txt")),
        distribution=table.text("distribution", "the distribution's name"),
        version=table.version("version"),
    )
    table.finish()
    return runtime


def _one_of_each_role(path: Path, pins: list[Pin]) -> None:
    for engine in Engine:
        for role in (PinRole.BENCH, PinRole.HEAD):
            versions = [pin.version for pin in pins if pin.engine is engine and pin.role is role]
            if len(versions) > 1:
                raise PinError(
                    f"{path}: {engine} has {len(versions)} pins of role {role} ({', '.join(versions)}); make all but one extra"
                )


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
