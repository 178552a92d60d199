"""The files of a wheel as they will lie on the host: chosen, thinned and sorted into import path, commands and data."""

from __future__ import annotations

import hashlib
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.bundle.fatbin import blank_other_architectures
from harness.bundle.select import dropped
from harness.bundle.target import Target
from harness.errors import BundleError

__all__ = ["Dropped", "KitFile", "source_file", "wheel_files"]

SHEBANG = b"#!python"


@dataclass(frozen=True, slots=True)
class KitFile:
    """One file of a kit: its path below the kit's folder on the host, and its content."""

    path: str
    content: bytes
    mode: int

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass(slots=True)
class Dropped:
    """What was not carried, as reason -> bytes."""

    bytes: Counter[str] = field(default_factory=Counter)


def wheel_files(wheel: Path, name: str, version: str, target: Target, left: Dropped, *, thin: bool = True) -> Iterator[KitFile]:
    """Files of one wheel, below dists/NAME-VERSION/{lib,bin,data}; `left` collects what stays behind.

    `thin` blanks the machine code of other GPUs in shared libraries.

    Raises BundleError for a file that would land outside.
    """
    root = f"dists/{name}-{version}"
    with zipfile.ZipFile(wheel) as archive:
        for info in sorted(archive.infolist(), key=lambda one: one.filename):
            if info.is_dir():
                continue
            path = info.filename
            if path.startswith("/") or ".." in path.split("/"):
                raise BundleError(f"{wheel.name} holds {path!r}, which would land outside its folder; it is refused")
            rule = dropped(name, path, target.major)
            if rule is not None:
                left.bytes[rule.reason] += info.file_size
                continue
            place = _place(path)
            if place is None:
                left.bytes["C headers for building extensions"] += info.file_size
                continue
            content = archive.read(info)
            if thin and ".so" in Path(path).name:
                library = bytearray(content)
                blanked = blank_other_architectures(library, target.architecture)
                if blanked:
                    left.bytes["machine code of other GPUs"] += blanked
                    content = bytes(library)
            executable = (info.external_attr >> 16) & 0o111 or place.startswith("bin/")
            yield KitFile(f"{root}/{place}", content, 0o755 if executable else 0o644)


def _place(path: str) -> str | None:
    """Where a wheel's file belongs: in lib (site-packages), bin or data (the environment's prefix)."""
    first, _, rest = path.partition("/")
    if not first.endswith(".data"):
        return f"lib/{path}"
    kind, _, below = rest.partition("/")
    if kind in {"purelib", "platlib"}:
        return f"lib/{below}"
    if kind == "scripts":
        return f"bin/{below}"
    return f"data/{below}" if kind == "data" else None


def source_file(archive: Path) -> KitFile:
    """The pinned source archive of an engine, from which trees are made."""
    return KitFile(f"archives/{archive.name}", archive.read_bytes(), 0o644)
