"""The base commit of a pin: from git where that answers, else from the archive; which of the two is always said."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.errors import TreeError, UnknownTreeError
from harness.git import EMAIL, NAME, GitCommandError, git, git_feed
from harness.names import nearest
from harness.paths import Paths
from harness.pins.index import fetch
from harness.pins.model import Pin
from harness.progress import Progress
from harness.trees.archive import is_generated, members
from harness.trees.repository import REFS, has_commit, repository, resolve
from harness.trees.use import using
from harness.vocabulary import Source

__all__ = ["Base", "NoAnswer", "ensure_base", "fetch_commit", "fetch_ref", "import_archive"]

CONNECT_TIMEOUT = 12.0  # seconds for a server to name the tag
FETCH_TIMEOUT = 1800.0  # seconds for a whole fetch; a stall ends it earlier (below)
PATIENCE = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=30")  # bytes a second, seconds

# Every machine makes the same commit from the same archive.
DATE = "946684800 +0000"  # 2000-01-01


class NoAnswer(TreeError):  # noqa: N818 - it is an answer's absence, and callers go on to the archive
    """A git source does not answer, or does not have the pin."""


@dataclass(frozen=True, slots=True)
class Base:
    """The pin's commit in the engine's repository, and where it came from."""

    commit: str
    source: Source


def ensure_base(
    paths: Paths, pin: Pin, progress: Progress, *, mirror: Path | None = None, source: Source | None = None
) -> Base:
    """The pin's base commit, fetched or imported when the repository does not have it. Call it with the lock held.

    `mirror` is a local git repository to use instead of the pin's URL. `source` None takes what is there already, else git,
    else the archive with a warning; a source that is named is the only one. Raises TreeError (also when the tag is not the
    pin's commit: that is never passed over), ArchiveError, PinError.
    """
    repo = repository(paths, pin.engine)
    if mirror is not None and not mirror.is_dir():
        raise TreeError(f"the mirror {mirror} is not a folder; give the path of a git repository of {pin.engine}")
    if mirror is None:
        for one in (Source.GIT, Source.ARCHIVE) if source is None else (source,):
            commit = resolve(repo, _ref(pin, one))
            if commit is not None and (one is Source.ARCHIVE or commit.startswith(pin.commit or "")):
                return Base(commit, one)
    if source is not Source.ARCHIVE:
        where = str(mirror.resolve()) if mirror is not None else pin.git_url
        try:
            with progress.step(f"{pin.name}: source from git, {where}"):
                return Base(fetch_commit(repo, pin, where), Source.GIT)
        except NoAnswer as error:
            if source is Source.GIT:
                raise
            progress.warn(f"{error}\n  {pin.name} comes from its archive {pin.archive.filename} instead")
    commit = resolve(repo, _ref(pin, Source.ARCHIVE))
    if commit is None:
        with using(paths, [paths.archives]):
            archive = fetch(pin.archive.project, pin.archive.filename, pin.archive.sha256, paths, progress)
            with progress.step(f"{pin.name}: source from the archive {pin.archive.filename}"):
                commit = import_archive(repo, pin, archive)
    return Base(commit, Source.ARCHIVE)


def fetch_commit(repo: Path, pin: Pin, where: str) -> str:
    """Bring the pin's commit, with its files and without its history, from a URL or path, and return its full hash.

    Raises NoAnswer when the source does not answer in time or lacks the pin, TreeError when its tag is another commit.
    """
    tags = _tags(repo, pin, where)
    offered = tags.get(pin.tag)
    full = len(pin.commit or "") == 40
    if offered is None and not full:
        raise NoAnswer(f"{where} has no tag {pin.tag}. {nearest(pin.tag, tags)}")
    if offered is not None and not offered.startswith(pin.commit or ""):
        raise TreeError(
            f"{where} has tag {pin.tag} at commit {offered}, but upstream/pins.toml pins {pin.name} to {pin.commit}. "
            "A release's tag does not move: find out which is right before you change the pin."
        )
    commit = offered or str(pin.commit)
    ref = _ref(pin, Source.GIT)
    if not has_commit(repo, commit):
        _fetch(repo, where, f"refs/tags/{pin.tag}" if offered is not None else commit, ref)
        found = resolve(repo, ref)
        if found != commit:
            raise TreeError(f"{where} said that {pin.tag} is {commit} and then sent {found}; run again, or use another mirror")
    git(repo, "update-ref", ref, commit)
    return commit


def fetch_ref(repo: Path, pin: Pin, name: str, where: str) -> str:
    """Bring a branch, tag or full commit hash that the repository does not have from a URL or path; its commit's full hash.

    Raises TreeError; UnknownTreeError, with the nearest names that the source has, when it has none of that name.
    """
    refs = _listed(repo, where, "refs/heads/*", "refs/tags/*", f"refs/{name}")
    wanted = next((one for one in (name, f"refs/heads/{name}", f"refs/tags/{name}", f"refs/{name}") if one in refs), None)
    if wanted is None:
        if not re.fullmatch(r"[0-9a-f]{40}", name):
            known = [one.removeprefix("refs/heads/").removeprefix("refs/tags/") for one in refs]
            raise UnknownTreeError(
                f"{name!r} is no ref of {pin.engine}, neither in the harness's repository nor at {where}, and no folder. "
                f"{nearest(name, known) if name else ''} A commit at {where} has to be given with all 40 digits."
            )
        wanted = name
    ref = f"{REFS}/ref/{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"
    _fetch(repo, where, wanted, ref)
    commit = resolve(repo, ref)
    if commit is None:
        raise TreeError(f"{name!r} at {where} is not a commit")
    return commit


def import_archive(repo: Path, pin: Pin, archive: Path) -> str:
    """Make one commit of an archive's files, minus packaging's own, and return its hash.

    A function of the pin and the archive's bytes: not of umask, clock, user or machine. Raises ArchiveError; the
    repository then has no new commit.
    """
    ref = _ref(pin, Source.ARCHIVE)
    try:
        git_feed(
            repo,
            *("-c", "core.compression=1", "fast-import", "--quiet", "--done", "--force", "--depth=0", "--date-format=raw"),
            chunks=_stream(pin, archive, ref),
        )
    finally:
        for crash in repo.glob("fast_import_crash_*"):
            crash.unlink()
    commit = resolve(repo, ref)
    if commit is None:
        raise TreeError(f"git fast-import made no commit of {archive} in {repo}")
    return commit


def _stream(pin: Pin, archive: Path, ref: str) -> Iterator[bytes]:
    """The archive as input of git fast-import. Nothing is kept unless the last line, `done`, is reached."""
    who = f"{NAME} <{EMAIL}> {DATE}"
    message = f"{pin.engine} {pin.version}\n\nFrom {pin.archive.filename}\nsha256 {pin.archive.sha256}\n".encode()
    yield f"commit {ref}\nauthor {who}\ncommitter {who}\ndata {len(message)}\n".encode() + message
    for member in members(archive):
        if is_generated(member.path):
            continue
        mode = "120000" if member.link else "100755" if member.executable else "100644"
        path = (pin.archive.prefix + member.path).replace("\\", "\\\\").replace('"', '\\"')
        yield f'M {mode} inline "{path}"\ndata {len(member.data)}\n'.encode("utf-8", "surrogateescape")
        yield member.data
        yield b"\n"
    yield b"done\n"


def _ref(pin: Pin, source: Source) -> str:
    return f"{REFS}/{source}/{pin.version}"


def _tags(repo: Path, pin: Pin, where: str) -> dict[str, str]:
    """Tag -> commit, as the source has it: the pin's tag, or all tags when that one is not there (for the message)."""
    refs = _listed(repo, where, f"refs/tags/{pin.tag}", f"refs/tags/{pin.tag}^{{}}") or _listed(repo, where, "refs/tags/*")
    return {name.removeprefix("refs/tags/"): commit for name, commit in refs.items()}


def _fetch(repo: Path, where: str, wanted: str, ref: str) -> None:
    """One commit with all its files and no history: enough for a worktree and for three-way merges."""
    words = ("fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
    # A plain path would make git link or copy the whole object store.
    source = Path(where).as_uri() if where.startswith("/") else where
    try:
        git(repo, *PATIENCE, *words, source, f"+{wanted}:{ref}", user_config=True, timeout=FETCH_TIMEOUT)
    except GitCommandError as error:
        raise NoAnswer(f"{where} does not give {wanted}: {_last_line(error)}") from error


def _listed(repo: Path, where: str, *patterns: str) -> dict[str, str]:
    """Ref -> commit, as the source has it. Raises NoAnswer."""
    try:
        listing = git(repo, *PATIENCE, "ls-remote", "--quiet", where, *patterns, user_config=True, timeout=CONNECT_TIMEOUT)
    except GitCommandError as error:
        raise NoAnswer(f"{where} does not answer: {_last_line(error)}") from error
    refs: dict[str, str] = {}
    for line in listing.stdout.splitlines():
        commit, _, name = line.partition("\t")
        # An annotated tag is listed twice; NAME^{} is the commit that it points at, and comes second.
        refs[name.removesuffix("^{}")] = commit
    return refs


def _last_line(error: GitCommandError) -> str:
    """What git said last, which is what was wrong."""
    lines = [line for line in error.stderr.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"git ended with status {error.status}"
