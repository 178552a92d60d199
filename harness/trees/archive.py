"""Read an sdist or a wheel without trusting it: every member is checked before a byte of it is used."""

from __future__ import annotations

import os
import posixpath
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from harness.errors import ArchiveError

__all__ = ["Member", "is_generated", "members", "unpack"]

BLOCK = 512  # bytes, the unit of tar

# What packaging adds to an upstream repository (or builds in it), so that a tree holds upstream's files alone.
GENERATED_AT_TOP = ("PKG-INFO", "setup.cfg")
GENERATED_IN_PACKAGE = ("_version.py", "_build_meta.py")
GENERATED_FOLDERS = ("*.egg-info", "*.dist-info")
GENERATED_ANYWHERE = ("*.so",)

TAR_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a named pipe",
}


@dataclass(frozen=True, slots=True)
class Member:
    """One file. `path` is relative to the root (an sdist's single folder); a symbolic link has its target in `data`."""

    path: str
    data: bytes
    executable: bool
    link: bool


def members(archive: Path) -> Iterator[Member]:
    """Every file of an sdist (.tar.gz) or wheel (.whl), in the archive's order.

    Raises ArchiveError, which names the archive and the member: an absolute path, `..`, `.git`, a device, a hard link, a
    symbolic link that leaves the archive's root, a name that appears twice or is both a file and a folder, an archive
    that is truncated or is not one. It can come after good members, so a caller keeps nothing before the end.
    """
    checked = _Names(archive)
    try:
        yield from _wheel(archive, checked) if archive.name.endswith(".whl") else _sdist(archive, checked)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise ArchiveError(
            f"{archive} is truncated or damaged ({type(error).__name__}: {error}). Delete it; it is fetched again."
        ) from error


def is_generated(path: str) -> bool:
    """Whether a file of an archive is packaging's and not upstream's: the named list that no tree has."""
    *folders, name = path.split("/")
    return (
        (not folders and name in GENERATED_AT_TOP)
        or (len(folders) == 1 and name in GENERATED_IN_PACKAGE)
        or any(fnmatch(folder, pattern) for folder in folders for pattern in GENERATED_FOLDERS)
        or any(fnmatch(name, pattern) for pattern in GENERATED_ANYWHERE)
    )


def unpack(archive: Path, destination: Path) -> None:
    """Write every file of the archive below `destination`, which must not exist; all of it appears or nothing does."""
    if destination.exists():
        raise ArchiveError(f"{archive.name} cannot be unpacked to {destination}: it exists already")
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        links = []
        for member in members(archive):
            if member.link:
                links.append(member)
                continue
            target = temporary / member.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(member.data)
            if member.executable:
                target.chmod(0o755)
        # Last, so that no file is ever written through a link.
        for member in links:
            target = temporary / member.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(os.fsdecode(member.data))
        temporary.chmod(0o755)
        temporary.rename(destination)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _Names:
    """Remembers what was seen, and refuses names that no honest archive has."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def refuse(self, name: str, why: str) -> ArchiveError:
        return ArchiveError(f"{self._archive} is refused: its member {name!r} {why}. Nothing of it was kept.")

    def clean(self, name: str) -> str:
        """The name as a relative path, "" for the root itself."""
        if name.startswith(("/", "\\")) or (len(name) > 1 and name[1] == ":"):
            raise self.refuse(name, "is an absolute path")
        if any(ord(letter) < ord(" ") or letter == "\\" for letter in name):
            raise self.refuse(name, "has a control character or a backslash in its name")
        parts = [part for part in name.split("/") if part not in {"", "."}]
        if ".." in parts:
            raise self.refuse(name, "leads out of the archive with `..`")
        if any(part.lower() == ".git" for part in parts):
            raise self.refuse(name, "would write into git's own folder")
        return "/".join(parts)

    def folder(self, name: str, path: str) -> None:
        if path in self._files:
            raise self.refuse(name, "is both a file and a folder")
        self._folders.add(path)

    def file(self, name: str, path: str) -> None:
        if path in self._files:
            raise self.refuse(name, "appears twice")
        if path in self._folders:
            raise self.refuse(name, "is both a file and a folder")
        self._files.add(path)
        parent = posixpath.dirname(path)
        while parent:
            self.folder(name, parent)
            parent = posixpath.dirname(parent)

    def link(self, name: str, path: str, target: str) -> None:
        landing = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if not target or target.startswith("/") or landing == ".." or landing.startswith("../"):
            raise self.refuse(name, f"is a link that leaves the archive, to {target!r}")
        if any(part.lower() == ".git" for part in landing.split("/")):
            raise self.refuse(name, f"is a link into git's own folder, to {target!r}")


def _sdist(archive: Path, names: _Names) -> Iterator[Member]:
    top = None
    with tarfile.open(archive, "r:gz") as tar:
        for entry in tar:
            name = names.clean(entry.name)
            first, _, path = name.partition("/")
            top = top or first
            if first != top:
                raise names.refuse(entry.name, f"lies outside the archive's folder {top!r}")
            if entry.isdir():
                names.folder(entry.name, path)
            elif entry.issym() and path:
                names.file(entry.name, path)
                names.link(entry.name, path, entry.linkname)
                yield Member(path, os.fsencode(entry.linkname), executable=False, link=True)
            elif entry.type in {tarfile.REGTYPE, tarfile.AREGTYPE} and path:
                names.file(entry.name, path)
                content = tar.extractfile(entry)
                data = content.read() if content else b""
                yield Member(path, data, executable=bool(entry.mode & stat.S_IXUSR), link=False)
            else:
                raise names.refuse(entry.name, f"is {TAR_KINDS.get(entry.type, 'not a plain file, folder or link')}")
        # tarfile takes a damaged header for the end; the real end is a block of zeros
        if tar.fileobj is not None:
            tar.fileobj.seek(tar.offset)
            if tar.fileobj.read(BLOCK) != bytes(BLOCK):
                raise tarfile.ReadError(f"no end of archive after {tar.offset} bytes")


def _wheel(archive: Path, names: _Names) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as wheel:
        for entry in wheel.infolist():
            path = names.clean(entry.filename)
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if entry.is_dir():
                names.folder(entry.filename, path)
                continue
            if kind not in {0, stat.S_IFREG} or not path:
                raise names.refuse(entry.filename, "is a link or a special file, which a wheel cannot have")
            names.file(entry.filename, path)
            # The builder's umask decides modes in wheels; git's tree gets 644.
            yield Member(path, wheel.read(entry), executable=False, link=False)
