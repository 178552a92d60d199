"""One bare repository per engine: made once, locked while one process changes it, never touched by the user's git settings."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from harness.errors import TreeError
from harness.git import git
from harness.paths import Paths
from harness.progress import Progress
from harness.vocabulary import Engine

__all__ = ["LOCK_WAIT", "REFS", "has_commit", "locked", "repository", "resolve"]

LOCK_WAIT = 60.0  # seconds that a second process waits, having said so; the longest import takes less

# Where the harness keeps the commits it made or fetched, so that no gc takes them.
REFS = "refs/upkernel"

# Content is what upstream's commit holds, byte for byte, whatever its .gitattributes would convert on checkout; and a
# diff of every text file is text, so that a patch can be read.
ATTRIBUTES = "* -text -ident !eol !filter !working-tree-encoding !diff !merge !export-subst\n"

CONFIG = {
    "gc.auto": "0",
    "core.autocrlf": "false",
    "core.logAllRefUpdates": "false",
    "core.symlinks": "true",
    "core.fileMode": "true",
}


def repository(paths: Paths, engine: Engine) -> Path:
    """The engine's bare repository, made when there is none. Call it with the lock held."""
    path = paths.repositories / f"{engine}.git"
    if path.is_dir():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{engine}-", dir=path.parent))
    try:
        # An empty template: the user's could bring hooks.
        git(temporary, "init", "--quiet", "--bare", "--object-format=sha1", "--initial-branch=main", "--template=", ".")
        for name, value in CONFIG.items():
            git(temporary, "config", name, value)
        (temporary / "info").mkdir(exist_ok=True)
        (temporary / "info" / "attributes").write_text(ATTRIBUTES, encoding="utf-8")
        temporary.chmod(0o755)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return path


@contextmanager
def locked(paths: Paths, engine: Engine, progress: Progress, *, wait: float = LOCK_WAIT) -> Iterator[None]:
    """Hold the engine's repository and its trees for one process; a second waits `wait` seconds.

    Raises TreeError with the process that holds it.
    """
    paths.repositories.mkdir(parents=True, exist_ok=True)
    lock = FileLock(paths.repositories / f"{engine}.lock")
    holder = paths.repositories / f"{engine}.holder"
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.say(f"waiting up to {wait:.0f} s for {_holder(holder)}, which works on the {engine} repository")
        try:
            lock.acquire(timeout=wait)
        except Timeout as error:
            raise TreeError(
                f"the {engine} repository in {paths.repositories} is in use by {_holder(holder)}. "
                "Wait until that is done, or end it, then run this again."
            ) from error
    try:
        holder.write_text(f"process {os.getpid()} ({' '.join(sys.argv)[:200]})", encoding="utf-8")
        _sweep(paths.repositories / f"{engine}.git")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def has_commit(repo: Path, commit: str) -> bool:
    """Whether the repository has this commit."""
    return resolve(repo, commit) is not None


def resolve(repo: Path, name: str) -> str | None:
    """The full hash of the commit that a name means in this repository, None when it means none."""
    if not name or name.startswith("-"):
        return None
    listing = git(repo, "cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=f"{name}^{{commit}}\n".encode())
    words = listing.stdout.split()
    return words[0] if len(words) == 2 and words[1] == "commit" else None


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "another process"
    except OSError:
        return "another process"


def _sweep(repo: Path) -> None:
    """Remove lock files that a killed git left in places that only the harness, which holds our lock, writes."""
    for stale in (repo / "shallow.lock", *repo.glob(f"{REFS}/**/*.lock")):
        stale.unlink(missing_ok=True)
