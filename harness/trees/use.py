"""Who uses a folder of the state: a run holds its trees and all else that it needs, so that nothing removes it under it."""

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
    """Hold folders while something runs: trees, environments, arms, models, experiments; several processes may hold the same.

    Raises TreeError while one of them is being removed or changed. It says nothing about whether they exist: what was removed
    before is noticed by whoever needs it.
    The kernel drops the hold with the process, however that ends.
    """
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_held(paths, folder, fcntl.LOCK_SH))
        yield


@contextmanager
def removing(paths: Paths, folder: Path) -> Iterator[None]:
    """Hold a folder alone, to remove it or to change what is in it. Raises TreeError when a process uses it."""
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
