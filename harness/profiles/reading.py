"""One door for everything that can be read as a profile: an export, a trace, a stored table, or the folder that holds one."""

from __future__ import annotations

from pathlib import Path

from harness.errors import ProfileError, UsageError
from harness.profiles.kineto import read_trace
from harness.profiles.model import Profile
from harness.profiles.nsys_reader import read_export
from harness.profiles.store import TABLE_NAME, is_table, load_profile

__all__ = ["REPORTS", "read_profile"]

# What nsys writes and only nsys reads: exported first, see nsys.export_report.
REPORTS = frozenset({".nsys-rep", ".qdstrm"})


def read_profile(path: Path, *, label: str | None = None) -> Profile:
    """The profile in a file, told by its content, or in the folder that `nox -s profile` left.

    Raises UsageError when there is no such file, ProfileError when it cannot be read.
    """
    if path.is_dir():
        path /= TABLE_NAME
    if not path.is_file():
        raise UsageError(
            f"there is no profile at {path}: give an SQLite export of nsys, a trace of PyTorch's profiler (.json, .json.gz), "
            f"a stored {TABLE_NAME}, or its folder"
        )
    if path.suffix in REPORTS:
        raise ProfileError(f"{path} has to be exported by nsys first: nox -s profile -- --from {path}")
    with path.open("rb") as stream:
        head = stream.read(16)
    if head.startswith(b"SQLite format 3"):
        return read_export(path, label=label)
    if head.startswith(b"\x1f\x8b") or head.lstrip()[:1] in {b"{", b"["}:
        return load_profile(path, label=label) if is_table(path) else read_trace(path, label=label)
    raise ProfileError(
        f"{path} is neither SQLite nor JSON (it begins with {head[:8]!r}); give an export (nsys export -t sqlite) or a trace"
    )
