"""Files that are either whole or absent, even when the machine stops in the middle."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from harness.errors import EvidenceError

__all__ = ["write_atomically"]


def write_atomically(path: Path, text: str) -> None:
    """Write beside the target, fsync, rename over it, fsync the folder; the old file stays until the new one is complete.

    Raises EvidenceError (disk full, no permission); the old content is then still there.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes the file private; evidence is to be read by others.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
        temporary = None
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise EvidenceError(f"cannot write {path}: {error.strerror or error}. Nothing that was there is lost.") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
