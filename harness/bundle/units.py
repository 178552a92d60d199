"""Pieces of a kit that are compressed by themselves: about 16 MB of tar each, kept by content for the next run."""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bundle.contents import KitFile
from harness.errors import BundleError
from harness.files import write_atomically

__all__ = ["UNIT_BYTES", "Unit", "compress", "header_stream", "make_units", "tar_member"]

UNIT_BYTES = 16_000_000
# 8 MB of dictionary; 9 would take 64 MB of the host's memory for pieces of 16 MB.
PRESET = 6
BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True, slots=True)
class Unit:
    """One xz stream of tar members.

    `files` describes the members in order: member, path, sha256 and size of the whole file, mode, offset and length of the
    piece. `owner` is the distribution (or archive) that the files are of.
    """

    owner: str
    files: tuple[dict[str, Any], ...]
    stream: Path
    size: int
    raw: int


def tar_member(name: str, content: bytes | memoryview, mode: int = 0o644) -> bytes:
    """One tar member, the same bytes on every machine (no owner, no time)."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    padding = -len(content) % BLOCK
    return info.tobuf(tarfile.PAX_FORMAT) + bytes(content) + bytes(padding)


def compress(raw: bytes) -> bytes:
    """An xz stream that checks itself by SHA-256."""
    return lzma.compress(raw, format=lzma.FORMAT_XZ, check=lzma.CHECK_SHA256, preset=PRESET)


def header_stream(members: Iterable[tuple[str, bytes]]) -> bytes:
    """The first xz stream of a part."""
    return compress(b"".join(tar_member(name, content) for name, content in members))


def make_units(files: Iterable[tuple[str, KitFile]], cache: Path, workers: int) -> Iterator[Unit]:
    """Group (owner, file) into units, in order; compress them on `workers` threads (xz leaves Python's lock).

    Raises BundleError when the folder `cache` cannot be written.
    """
    cache.mkdir(parents=True, exist_ok=True)
    waiting: deque[Future[Unit]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for owner, described, raw in _grouped(files):
            waiting.append(pool.submit(_compressed, owner, described, raw, cache))
            # not all of it at once: a unit is 16 MB of memory
            while len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _grouped(files: Iterable[tuple[str, KitFile]]) -> Iterator[tuple[str, tuple[dict[str, Any], ...], bytes]]:
    owner, raw = "", io.BytesIO()
    described: list[dict[str, Any]] = []

    def flush() -> Iterator[tuple[str, tuple[dict[str, Any], ...], bytes]]:
        nonlocal described, raw
        if described:
            yield owner, tuple(described), raw.getvalue()
            described, raw = [], io.BytesIO()

    for new_owner, file in files:
        if new_owner != owner:
            yield from flush()
            owner = new_owner
        sha256, view = file.sha256, memoryview(file.content)
        for offset in range(0, max(len(view), 1), UNIT_BYTES):
            piece = view[offset : offset + UNIT_BYTES]
            if raw.tell() and raw.tell() + len(piece) > UNIT_BYTES:
                yield from flush()
            member = file.path if len(piece) == len(view) else f"{file.path}@{offset}"
            described.append({
                "member": member, "path": file.path, "sha256": sha256, "size": len(view), "mode": file.mode,
                "offset": offset, "length": len(piece),
            })  # fmt: skip
            raw.write(tar_member(member, piece, file.mode))
    yield from flush()


def _compressed(owner: str, described: tuple[dict[str, Any], ...], raw: bytes, cache: Path) -> Unit:
    stream = cache / f"{hashlib.sha256(raw).hexdigest()}-{PRESET}.xz"
    if not stream.exists():
        write_atomically(stream, compress(raw), BundleError)
    return Unit(owner, described, stream, stream.stat().st_size, len(raw))
