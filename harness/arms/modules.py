"""Did every process of a run load its arm's files, and nothing else, for each engine module?"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.arms.model import Arm
from harness.arms.overlay import PACKAGES
from harness.errors import TreeError
from harness.git import git, git_bytes
from harness.pins.download import sha256_of
from harness.runs.model import GuardReading
from harness.trees.model import Tree
from harness.trees.user import user_changes
from harness.vocabulary import Guard, GuardState, TreeOrigin

__all__ = ["LoadedModule", "check_modules", "read_records"]

SHOWN = 5  # offenders named in a message

# Commits never change, so these hold for the life of this process: (repository, commit) -> path -> sha256.
_known: dict[tuple[Path, str], dict[str, str | None]] = {}
# What was found in order for an arm whose files cannot change unnoticed. A live server's record is checked after every run and
# grows by a few lines, if at all: only those are looked at again.
_in_order: dict[tuple[str, ...], set[LoadedModule]] = {}


@dataclass(frozen=True, slots=True)
class LoadedModule:
    """One line of a record. `sha256` is None where the process could not read the file, "" for a folder."""

    name: str
    path: Path
    sha256: str | None


@dataclass(frozen=True, slots=True)
class _Records:
    modules: frozenset[LoadedModule]
    processes: int
    damaged: tuple[str, ...]


def check_modules(arm: Arm, record_dir: Path) -> GuardReading:
    """Compare what the processes wrote to `record_dir` with the arm's commits and links.

    Fired: no process recorded an engine module; a module lies elsewhere than in the arm's tree; its content is neither the
    tip commit's nor its link's; a record cannot be read; or the user's checkout changed since the arm was made.
    """
    records = read_records(record_dir)
    if not records.modules:
        return _fired(
            f"no engine module was recorded by the {records.processes} processes that wrote to {record_dir}, "
            "so it is not known what ran"
        )
    wrong = [f"record {one} cannot be read" for one in records.damaged]
    for tree in arm.trees:
        wrong += _moved_on(tree)
    key = (arm.digest, *(str(tree.path) for tree in arm.trees))
    settled = set() if any(tree.origin is TreeOrigin.PATH for tree in arm.trees) else _in_order.setdefault(key, set())
    wrong += _misplaced(arm, records.modules - settled)
    if not wrong:
        settled |= records.modules
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        return _fired("; ".join(wrong[:SHOWN]) + more)
    names = len({one.name for one in records.modules})
    return GuardReading(
        Guard.MODULES,
        GuardState.PASSED,
        f"{names} engine modules in {records.processes} processes, all with the content of arm {arm.name}",
    )


def read_records(record_dir: Path) -> _Records:
    """Everything that the processes of a run wrote. A last line without its end is one that a kill cut off: it is ignored."""
    files = sorted(record_dir.glob("*.jsonl")) if record_dir.is_dir() else []
    read = [_read_record(file, file.stat().st_size) for file in files]
    return _Records(
        modules=frozenset[LoadedModule]().union(*(modules for modules, _ in read)),
        processes=len(files),
        damaged=tuple(place for _, damaged in read for place in damaged),
    )


@functools.lru_cache(maxsize=512)
def _read_record(file: Path, size: int) -> tuple[frozenset[LoadedModule], tuple[str, ...]]:
    """One process's modules, and the lines that are none. Records only grow, so a file of the same size is the same file."""
    modules: set[LoadedModule] = set()
    damaged: list[str] = []
    *lines, _cut_off = file.read_bytes()[:size].split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            if "process" not in entry:
                modules.add(LoadedModule(entry["name"], Path(entry["path"]), entry["sha256"]))
        except (ValueError, KeyError, TypeError):
            damaged.append(f"{file.name}:{number}")
    return frozenset(modules), tuple(damaged)


def _fired(detail: str) -> GuardReading:
    return GuardReading(Guard.MODULES, GuardState.FIRED, detail)


def _moved_on(tree: Tree) -> list[str]:
    """A checkout of the user's own must still be what the arm was made of."""
    if tree.origin is not TreeOrigin.PATH:
        return []
    try:
        tip = git(tree.path, "rev-parse", "--verify", "HEAD^{commit}", user_config=True).stdout
        changes = user_changes(tree.path)
    except TreeError as error:
        return [f"{tree.path} cannot be read any more: {error}"]
    if (tip, changes) != (tree.tip, tree.changes):
        return [f"the checkout {tree.path} was changed while it was measured"]
    return []


def _misplaced(arm: Arm, modules: Iterable[LoadedModule]) -> list[str]:
    wrong: list[str] = []
    inside: dict[Tree, dict[str, list[LoadedModule]]] = {tree: {} for tree in arm.trees}
    for module in sorted(modules, key=lambda one: (one.name, str(one.path))):
        top = module.name.partition(".")[0]
        owner = next((tree for tree in arm.trees if top == PACKAGES[tree.engine]), None)
        if owner is None:
            # An engine package that the arm has no tree of comes from the environment that both arms share.
            if not module.path.is_relative_to(arm.environment.prefix):
                wrong.append(f"{module.name} came from {module.path}, which is not the arm's environment")
        elif not module.path.is_relative_to(owner.import_path):
            wrong.append(f"{module.name} came from {module.path}, not from the tree {owner.path}")
        elif module.sha256 is None:
            wrong.append(f"{module.name}: {module.path} could not be read when it was loaded")
        elif module.sha256:
            inside[owner].setdefault(str(module.path.relative_to(owner.path)), []).append(module)
    for tree, found in inside.items():
        expected = _expected(arm, tree, found)
        for path, loaded in found.items():
            wrong += [
                f"{one.name}: {path} in {tree.path} "
                + ("belongs to no commit or link of the arm" if expected[path] is None else "has other content than the arm's")
                for one in loaded
                if one.sha256 != expected[path]
            ]
    return wrong


def _expected(arm: Arm, tree: Tree, paths: Iterable[str]) -> Mapping[str, str | None]:
    """The sha256 that each path of the tree must have; None for a path that is nobody's."""
    wanted = set(paths)
    linked = {path: arm.links[path] for path in wanted if path in arm.links}
    if tree.origin is TreeOrigin.PATH:
        # _moved_on has made sure that the files are as they were when the arm was made.
        return {path: _on_disk(tree.path / path) for path in wanted} | linked
    return _committed(tree.path, tree.tip, wanted - linked.keys()) | linked


def _on_disk(file: Path) -> str | None:
    return sha256_of(file) if file.is_file() else None


def _committed(repository: Path, commit: str, paths: Iterable[str]) -> dict[str, str | None]:
    known = _known.setdefault((repository, commit), {})
    wanted = set(paths)
    missing = sorted(wanted - known.keys())
    if missing:
        known |= _read_blobs(repository, commit, missing)
    return {path: known[path] for path in wanted}


def _read_blobs(repository: Path, commit: str, paths: list[str]) -> dict[str, str | None]:
    """sha256 of files of a commit, all in one git process."""
    asked = "".join(f"{commit}:{path}\n" for path in paths).encode("utf-8", "surrogateescape")
    answer = git_bytes(repository, "cat-file", "--batch", stdin=asked)
    found: dict[str, str | None] = {}
    at = 0
    for path in paths:
        end = answer.index(b"\n", at)
        header = answer[at:end].split(b" ")
        at = end + 1
        if header[-1] == b"missing":
            found[path] = None
            continue
        size = int(header[-1])
        found[path] = hashlib.sha256(answer[at : at + size]).hexdigest()
        at += size + 1
    return found
