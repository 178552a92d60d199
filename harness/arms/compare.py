"""Every difference of two arms, and whether the series is what explains it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harness.arms.model import Arm
from harness.arms.variables import JIT_VARIABLE
from harness.errors import ArmError
from harness.git import git_bytes
from harness.trees.model import Tree
from harness.trees.worktrees import changed_files
from harness.vocabulary import TreeOrigin

__all__ = ["Cause", "Difference", "DifferenceKind", "differences"]

ABSENT = "absent"
SHORT = 12  # digits of a hash that are shown


class DifferenceKind(StrEnum):
    """Where two arms differ."""

    BASE = "base"
    TREE_FILE = "file"
    LINK = "link"
    PACKAGE = "package"
    VARIABLE = "variable"
    INTERPRETER = "interpreter"


class Cause(StrEnum):
    """Whether a difference is the change that is measured, or something that would falsify the comparison."""

    SERIES = "series"
    OTHER = "not the series"


@dataclass(frozen=True, slots=True)
class Difference:
    """`a` and `b` are what the two arms have: a hash, a version, a value, or "absent"."""

    kind: DifferenceKind
    name: str
    a: str
    b: str
    cause: Cause


def differences(a: Arm, b: Arm) -> tuple[Difference, ...]:
    """Everything in which the arms differ: files of the trees, links by hash, packages, variables, interpreter.

    A file (or a link in its place) is the series' when one of the trees changes it relative to its own base. Raises ArmError
    when the arms do not have trees of the same engines, TreeError when a tree cannot be read.
    """
    if [tree.engine for tree in a.trees] != [tree.engine for tree in b.trees]:
        raise ArmError(f"{a.name} has {_engines(a)} and {b.name} has {_engines(b)}; only arms of the same engines compare")
    found: list[Difference] = []
    own: set[str] = set()
    for first, second in zip(a.trees, b.trees, strict=True):
        if first.base != second.base:
            base = f"{first.engine} base commit"
            found.append(Difference(DifferenceKind.BASE, base, first.base[:SHORT], second.base[:SHORT], Cause.OTHER))
        files_a, files_b = _files(first), _files(second)
        changed = _changed(first, files_a, second) | _changed(second, files_b, first)
        own |= changed
        found += _compare(DifferenceKind.TREE_FILE, files_a, files_b, changed)
    found += _compare(DifferenceKind.LINK, a.links, b.links, own)
    one, other = a.environment, b.environment
    found += _compare(DifferenceKind.PACKAGE, one.packages, other.packages, set())
    found += _compare(DifferenceKind.VARIABLE, _portable(a), _portable(b), set())
    if one.digest != other.digest or one.prefix != other.prefix:
        pair = (f"{one.prefix} {one.digest[:SHORT]}", f"{other.prefix} {other.digest[:SHORT]}")
        found.append(Difference(DifferenceKind.INTERPRETER, "environment", *pair, Cause.OTHER))
    return tuple(found)


def _engines(arm: Arm) -> str:
    return " and ".join(tree.engine for tree in arm.trees) or "no tree"


def _compare(kind: DifferenceKind, a: Mapping[str, str], b: Mapping[str, str], own: set[str]) -> Iterator[Difference]:
    for name in sorted(a.keys() | b.keys()):
        one, other = a.get(name, ABSENT), b.get(name, ABSENT)
        if one != other:
            yield Difference(kind, name, _short(one), _short(other), Cause.SERIES if name in own else Cause.OTHER)


def _short(value: str) -> str:
    is_hash = len(value) in {40, 64} and set(value) <= set("0123456789abcdef")
    return value[:SHORT] if is_hash else value


def _changed(tree: Tree, files: Mapping[str, str], other: Tree) -> set[str]:
    """What the tree changes relative to its base, by path."""
    if tree.tip == tree.base and tree.changes is None:
        return set()
    # A user's checkout need not have the pin's base commit; the engine's own repository, which all other trees share, does.
    shared = next((one for one in (tree, other) if one.origin is not TreeOrigin.PATH), None)
    if shared is None:
        # Two checkouts of the user's own: whatever differs between them is what is measured.
        return set(files) | set(_files(other))
    base = _listing(shared.path, tree.base)
    return {path for path in base.keys() | files.keys() if base.get(path) != files.get(path)}


def _files(tree: Tree) -> dict[str, str]:
    """Path -> git's blob hash for every file of the tree, uncommitted changes of a user's checkout included."""
    files = _listing(tree.path, tree.tip)
    if tree.origin is TreeOrigin.PATH:
        for name in changed_files(tree.path, user_config=True):
            file = tree.path / name
            if file.is_symlink() or file.is_file():
                files[name] = _blob(file)
            else:
                files.pop(name, None)
    return files


def _listing(where: Path, commit: str) -> dict[str, str]:
    raw = git_bytes(where, "ls-tree", "-r", "-z", "--full-tree", commit, user_config=True)
    files: dict[str, str] = {}
    for entry in raw.split(b"\0"):
        if entry:
            about, _, path = entry.partition(b"\t")
            mode, _kind, blob = about.decode().split()
            # An executable bit is a difference too.
            files[os.fsdecode(path)] = blob if mode == "100644" else f"{mode} {blob}"
    return files


def _blob(file: Path) -> str:
    content = os.fsencode(file.readlink()) if file.is_symlink() else file.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    mode = "120000" if file.is_symlink() else "100755" if os.access(file, os.X_OK) else "100644"
    return blob if mode == "100644" else f"{mode} {blob}"


def _portable(arm: Arm) -> dict[str, str]:
    """The variables with the places that must differ (trees, the arm's own folder) replaced by their meaning."""
    places = {str(tree.path): f"<tree of {tree.engine}>" for tree in arm.trees}
    places[str(Path(arm.variables["PYTHONPYCACHEPREFIX"]).parent)] = "<arm>"
    # Named by the content of the sources, which are compared file by file.
    places[arm.variables[JIT_VARIABLE]] = "<compiled on demand>"
    return {
        name: os.pathsep.join(_meant(one, places) for one in value.split(os.pathsep)) for name, value in arm.variables.items()
    }


def _meant(value: str, places: Mapping[str, str]) -> str:
    """A path below one of the places (the deepest counts) by its meaning; anything else as it is."""
    for place in sorted(places, key=len, reverse=True):
        if value == place or value.startswith(place + os.sep):
            return places[place] + value[len(place) :]
    return value
