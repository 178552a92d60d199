"""Read upstream/pins.toml. Every complaint names the file, the pin and the field."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from harness.errors import PinError, UnknownPinError
from harness.fields import Fields, read_toml
from harness.names import nearest
from harness.pins.model import Archive, ArchiveKind, Pin, Runtime
from harness.vocabulary import Device, Engine, PinRole

__all__ = ["Pins", "archive_kind", "read_pins"]

SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{7,40}")
WHEEL = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+")
LIST = re.compile(r"[A-Za-z0-9._-]+\.txt")


@dataclass(frozen=True, slots=True)
class Pins:
    """Every pin of the file, in its order."""

    path: Path
    pins: tuple[Pin, ...]

    def of(self, engine: Engine) -> tuple[Pin, ...]:
        """The pins of one engine."""
        return tuple(pin for pin in self.pins if pin.engine is engine)

    def find(self, engine: Engine, name: str) -> Pin:
        """The pin with this version, or of this role ("bench", "head"). Raises UnknownPinError with the nearest names."""
        known = self.of(engine)
        for pin in known:
            if name == pin.version or (name == pin.role and pin.role is not PinRole.EXTRA):
                return pin
        names = [PinRole.BENCH.value, PinRole.HEAD.value, *(pin.version for pin in known)]
        raise UnknownPinError(
            f"there is no {engine} pin {name!r} in {self.path}. {nearest(name, names)} "
            f"(a release is added with: nox -s pin -- {engine} VERSION)"
        )


def read_pins(path: Path) -> Pins:
    """Raises PinError: no such file, not TOML (with the line), a field that is missing, malformed or unknown."""
    document = read_toml(path, PinError)
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


def _pin(path: Path, engine: Engine, version: str, raw: object) -> Pin:
    # [vllm.0.24] is TOML for a table 24 in a table 0
    nested = isinstance(raw, dict) and "role" not in raw and bool(raw) and all(isinstance(one, dict) for one in raw.values())
    if nested or not _is_version(version):
        raise PinError(f'{path}: [{engine}.{version}] is not named for a version; write it in quotes, like [{engine}."0.24.0"]')
    fields = Fields(f"{path}: pin {engine} {version}", raw, PinError)
    pin = Pin(
        engine=engine,
        version=version,
        role=fields.choice("role", PinRole),
        git_url=fields.text("git", "the URL of the git repository"),
        tag=fields.text("tag", "the name of the release's tag"),
        commit=fields.text("commit", "7 to 40 hexadecimal digits", pattern=COMMIT) if fields.has("commit") else None,
        archive=_archive(fields.table("archive", "a table with project, file and sha256")),
        torch=_version(fields, "torch"),
        requires=_requires(fields),
        runtimes=_runtimes(fields),
    )
    fields.finish()
    return pin


def _archive(fields: Fields) -> Archive:
    want = "a file name that ends with .tar.gz or .whl"
    filename = fields.text("file", want)
    kind = archive_kind(filename)
    if kind is None or "/" in filename:
        raise fields.malformed("file", filename, want)
    prefix = ""
    if fields.has("prefix"):
        want = "a folder inside the repository that ends with /, like python/"
        prefix = fields.text("prefix", want)
        if not prefix.endswith("/") or prefix.startswith("/") or ".." in PurePosixPath(prefix).parts or "\\" in prefix:
            raise fields.malformed("prefix", prefix, want)
    archive = Archive(
        project=fields.text("project", "the project's name on the package index"),
        filename=filename,
        sha256=fields.text("sha256", "64 hexadecimal digits", pattern=SHA256),
        kind=kind,
        prefix=prefix,
    )
    fields.finish()
    return archive


def _requires(fields: Fields) -> tuple[str, ...]:
    want = "a list of requirements like flashinfer-python==0.6.12"
    requires = fields.texts("requires", want)
    for one in requires:
        try:
            Requirement(one)
        except InvalidRequirement as error:
            raise fields.malformed("requires", one, f"{want} ({error})") from error
    return requires


def _runtimes(fields: Fields) -> tuple[Runtime, ...]:
    if not fields.has("runtimes"):
        return ()
    runtimes = tuple(_runtime(one) for one in fields.tables("runtimes"))
    devices = [str(runtime.device) for runtime in runtimes]
    if len(set(devices)) < len(devices):
        raise fields.malformed("runtimes", devices, "at most one for each device")
    return runtimes


def _runtime(fields: Fields) -> Runtime:
    runtime = Runtime(
        device=fields.choice("device", Device),
        wheel=fields.text("wheel", "PROJECT==VERSION", pattern=WHEEL),
        sha256=fields.text("sha256", "64 hexadecimal digits", pattern=SHA256),
        requirements=fields.text("requirements", "a file name in upstream/requirements", pattern=LIST),
        distribution=fields.text("distribution", "the distribution's name"),
        version=_version(fields, "version"),
    )
    fields.finish()
    return runtime


def _version(fields: Fields, key: str) -> str:
    want = "a version like 2.11.0"
    value = fields.text(key, want)
    if not _is_version(value):
        raise fields.malformed(key, value, want)
    return value


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
