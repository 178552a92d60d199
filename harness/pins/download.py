"""Download one file: streamed, continued where it stopped, its sha256 checked, in place only when it is whole and right."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
from filelock import FileLock, Timeout
from unearth.fetchers import PyPIClient

from harness.errors import ArchiveError
from harness.files import sync_folder
from harness.progress import Progress

__all__ = ["download", "is_file_with", "locked", "sha256_of"]

ATTEMPTS = 4
SAY_EVERY = 5.0  # seconds between progress lines
MEGABYTE = 1_000_000
HTTP_PARTIAL = 206
HTTP_BAD_RANGE = 416


def sha256_of(path: Path) -> str:
    """The file's sha256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_file_with(path: Path, sha256: str) -> bool:
    """Whether the file is there with this content."""
    return path.is_file() and sha256_of(path) == sha256


@contextmanager
def locked(target: Path, progress: Progress) -> Iterator[None]:
    """Only one process at a time makes `target`; a second waits, and says so."""
    lock = FileLock(f"{target}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.say(f"waiting for another process that fetches {target.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def download(session: PyPIClient, url: str, target: Path, sha256: str | None, progress: Progress) -> str:
    """Write what `url` holds to `target` and return its sha256.

    `sha256` None takes what comes (for a release that is being pinned). The unfinished file lies beside the target as
    `NAME.part`; a later call goes on from there when the server can, and starts again when the result is not right.

    Raises ArchiveError: wrong hash, truncated after several attempts, server error, disk full.
    """
    part = target.with_name(target.name + ".part")
    if sha256 is None:
        part.unlink(missing_ok=True)
    continued = part.exists()
    digest = _attempts(session, url, part, progress)
    if sha256 not in {None, digest} and continued:
        progress.warn(f"what was left of an earlier download of {target.name} does not fit; it is fetched again from the start")
        part.unlink(missing_ok=True)
        digest = _attempts(session, url, part, progress)
    if sha256 not in {None, digest}:
        part.unlink(missing_ok=True)
        raise ArchiveError(
            f"{target.name} has the wrong hash: expected sha256 {sha256}, found {digest} (from {_shown(url)}). "
            "Nothing was kept. Ask whether the index or a proxy changes files; "
            "if the release was really replaced, correct upstream/pins.toml."
        )
    part.replace(target)
    sync_folder(target.parent)
    return digest


def _attempts(session: PyPIClient, url: str, part: Path, progress: Progress) -> str:
    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            progress.warn(f"download of {part.stem} was cut off ({problem}); attempt {attempt + 1} of {ATTEMPTS} goes on")
            time.sleep(min(2.0**attempt, 5.0) / 4)
        try:
            _receive(session, url, part, progress)
            return sha256_of(part)
        except httpx2.HTTPStatusError as error:
            answer = f"{error.response.status_code} {error.response.reason_phrase}"
            raise ArchiveError(f"{part.stem} cannot be fetched: {_shown(url)} answered {answer}") from error
        except httpx2.HTTPError as error:
            problem = f"{type(error).__name__}: {error}"
        except OSError as error:
            what = "the disk is full" if error.errno == errno.ENOSPC else str(error)
            raise ArchiveError(f"{part} cannot be written: {what}. Free space (nox -s clean) and run again.") from error
    size = part.stat().st_size if part.exists() else 0
    raise ArchiveError(
        f"{part.stem} is truncated: {_shown(url)} broke off {ATTEMPTS} times, last after {size} bytes ({problem}). "
        "Check the network and run again; the download goes on where it stopped."
    )


def _receive(session: PyPIClient, url: str, part: Path, progress: Progress) -> None:
    """One request: append to the part, or rewrite it where the server does not know ranges."""
    have = part.stat().st_size if part.exists() else 0
    # identity: with Content-Encoding: gzip a .tar.gz would arrive unpacked
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with session.stream("GET", url, headers=headers) as response:
        if response.status_code == HTTP_BAD_RANGE:
            # The part is as long as the file, or longer: its hash decides.
            return
        response.raise_for_status()
        appending = response.status_code == HTTP_PARTIAL
        have = have if appending else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        last = time.monotonic()
        with part.open("ab" if appending else "wb") as file:
            # no chunk size: what came before a break is then all written
            for chunk in response.iter_raw():
                file.write(chunk)
                have += len(chunk)
                if time.monotonic() - last > SAY_EVERY:
                    last = time.monotonic()
                    progress.say(f"{part.stem}: {have / MEGABYTE:.0f} of {_megabytes(total)} MB")
            file.flush()
            os.fsync(file.fileno())
    if total is not None and have < total:
        raise httpx2.RemoteProtocolError(f"{have} of {total} bytes came")


def _megabytes(total: int | None) -> str:
    return "unknown" if total is None else f"{total / MEGABYTE:.0f}"


def _shown(url: str) -> str:
    """The URL without a password."""
    parsed = httpx2.URL(url)
    return str(parsed.copy_with(username=None, password=None, fragment=None)) if parsed.userinfo else url.partition("#")[0]
