"""Who uses a tree: a run holds its trees, so that nothing removes them under it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.errors import TreeError
from harness.paths import Paths

__all__ = ["removing", "using"]


@contextmanager
def using(paths: Paths, folders: Iterable[Path]) -> Iterator[None]:
    """Hold trees (or environments) while they run; several processes may hold the same one.

    Raises TreeError while one of them is being removed.
    The kernel drops the hold with the process, however that ends.
    """
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_held(paths, folder, fcntl.LOCK_SH))
        yield


@contextmanager
def removing(paths: Paths, folder: Path) -> Iterator[None]:
    """Hold a tree alone. Raises TreeError when a process uses it."""
    with _held(paths, folder, fcntl.LOCK_EX):
        yield


@contextmanager
def _held(paths: Paths, folder: Path, kind: int) -> Iterator[None]:
    locks = paths.state / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    name = str(folder.resolve()).strip("/").replace("/", "%")[-200:]
    descriptor = os.open(locks / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TreeError(f"{folder} is in use by another harness process; wait until that is done, or end it") from error
        yield
    finally:
        os.close(descriptor)
