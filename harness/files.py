"""Files that are either whole or absent, even when the machine stops in the middle."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from harness.errors import UpkernelError

__all__ = ["sync_folder", "write_atomically", "write_durably"]


def write_durably(path: Path, content: str | bytes) -> None:
    """Write and wait until the content is on the disk; the name is, after `sync_folder`. Raises OSError."""
    with path.open("wb") as stream:
        stream.write(content.encode() if isinstance(content, str) else content)
        stream.flush()
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, content: str | bytes, error: type[UpkernelError]) -> None:
    """Write beside the target, fsync, rename over it, fsync the folder; the old file stays until the new one is complete.

    Raises `error` (disk full, no permission); the old content is then still there.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
        write_durably(temporary, content)
        # mkstemp makes the file private; what is stored here is to be read by others.
        temporary.chmod(0o644)
        temporary.replace(path)
        temporary = None
        sync_folder(path.parent)
    except OSError as cause:
        raise error(f"cannot write {path}: {cause.strerror or cause}. Nothing that was there is lost.") from cause
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
