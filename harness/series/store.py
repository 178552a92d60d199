"""Write so that a kill leaves the old or the new, never a mixture: one file, or all patch files of a series."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import SeriesError
from harness.files import sync_folder, write_durably

__all__ = ["PATCH_GLOB", "PatchFile", "finish_export", "write_patches"]

PATCH_GLOB = "[0-9][0-9][0-9][0-9]-*.patch"
# The complete new set, from the moment it is complete until every file has reached its place.
READY = ".export-ready"
# Its list of names: files that have reached their place already are no longer in the folder.
NAMES = "names"
# A set that does not count yet, or no longer.
DRAFT = ".export-draft-"


@dataclass(frozen=True, slots=True)
class PatchFile:
    """One exported patch: its file name and its content."""

    name: str
    content: bytes


def write_patches(directory: Path, patches: Sequence[PatchFile]) -> None:
    """Make `patches` the only patch files in `directory`. Files that are the same already are not touched.

    There is no way to replace several files at once, so this is a journal of one entry: the new set is written to a folder,
    the folder is renamed (from here on the new set counts), and its files are moved into place, by whoever comes next
    if this process is killed. Raises SeriesError when the disk refuses; the old files are then still all there.
    """
    finish_export(directory)
    for dead in directory.glob(f"{DRAFT}*"):
        shutil.rmtree(dead)
    if {file.name: file.read_bytes() for file in directory.glob(PATCH_GLOB)} == {one.name: one.content for one in patches}:
        return
    draft = None
    try:
        draft = Path(tempfile.mkdtemp(prefix=DRAFT, dir=directory))
        for one in patches:
            write_durably(draft / one.name, one.content)
        write_durably(draft / NAMES, "".join(f"{one.name}\n" for one in patches).encode())
        sync_folder(draft)
        draft.rename(directory / READY)
    except OSError as error:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
        raise SeriesError(f"the patches could not be written to {directory}: {error}; the old ones are unchanged") from error
    sync_folder(directory)
    finish_export(directory)


def finish_export(directory: Path) -> None:
    """Complete an export to this folder that was killed after its new set was complete."""
    ready = directory / READY
    if ready.is_dir():
        names = (ready / NAMES).read_text(encoding="utf-8").splitlines()
        for name in names:
            if (ready / name).exists():
                (ready / name).replace(directory / name)
        for file in directory.glob(PATCH_GLOB):
            if file.name not in names:
                file.unlink()
        sync_folder(directory)
        # renamed first, because a half-deleted folder would look like a set without its list
        shutil.rmtree(ready.rename(directory / f"{DRAFT}{os.getpid()}"))
