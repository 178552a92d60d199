"""What the state folder holds, how much disk it takes, and which of it can go."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harness.errors import TreeError
from harness.git import git
from harness.paths import Paths
from harness.progress import Progress
from harness.trees.repository import locked
from harness.trees.use import removing
from harness.trees.worktrees import TEMPORARY, WORK, changed_files, prune
from harness.vocabulary import Engine

__all__ = ["DEFAULT", "Item", "Kind", "Removal", "free", "list_items"]

DELETING = ".deleting-"


class Kind(StrEnum):
    """What can be freed. All but work and experiments can be made again."""

    TREES = "trees"
    ENVIRONMENTS = "environments"
    ARMS = "arms"
    MODELS = "models"
    ARCHIVES = "archives"
    REPOSITORIES = "repositories"
    WORK = "work"
    EXPERIMENTS = "experiments"


# Freed without being named. A person's work and measured results never are.
DEFAULT = (Kind.TREES, Kind.ENVIRONMENTS, Kind.ARMS, Kind.MODELS, Kind.ARCHIVES, Kind.REPOSITORIES)


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that takes disk; `size` is in bytes as allocated, files linked into several places counted once."""

    kind: Kind
    name: str
    path: Path
    size: int
    engine: Engine | None = None


@dataclass(frozen=True, slots=True)
class Removal:
    """What became of an item: `kept` says why it is still there, None when it is gone."""

    item: Item
    kept: str | None


def list_items(paths: Paths) -> tuple[Item, ...]:
    """Everything in the state folder, in the order in which it is freed: a repository after its trees."""
    seen: set[tuple[int, int]] = set()
    items = []
    for engine in Engine:
        for path in _children(paths.trees / engine):
            kind = Kind.WORK if path.name.startswith(WORK) else Kind.TREES
            items.append(Item(kind, f"{engine}/{path.name}", path, _size(path, seen), engine))
    for kind, folder in (
        (Kind.ENVIRONMENTS, paths.environments),
        (Kind.ARMS, paths.arms),
        (Kind.MODELS, paths.models),
        (Kind.ARCHIVES, paths.archives),
        (Kind.EXPERIMENTS, paths.experiments),
    ):
        items += [Item(kind, path.name, path, _size(path, seen)) for path in _children(folder) if path.suffix != ".lock"]
    for engine in Engine:
        path = paths.repositories / f"{engine}.git"
        if path.is_dir():
            items.append(Item(Kind.REPOSITORIES, path.name, path, _size(path, seen), engine))
    return tuple(items)


def free(paths: Paths, items: Sequence[Item], progress: Progress) -> tuple[Removal, ...]:
    """Remove items, each at once or not at all.

    Kept, and said why, is whatever a process holds (`harness.trees.use`), and a tree with changes or commits of a person's own.

    Raises TreeError when an engine's repository is in use by another process.
    """
    engines = sorted({item.engine for item in items if item.engine is not None})
    with ExitStack() as stack:
        for engine in engines:
            stack.enter_context(locked(paths, engine, progress))
        removals = tuple(Removal(item, _remove(paths, item)) for item in items)
        for engine in engines:
            if any(removal.kept is None and removal.item.engine is engine for removal in removals):
                prune(paths, engine)
    return removals


def _reason(paths: Paths, item: Item) -> str | None:
    """Why the item must stay, None when it may go."""
    if item.kind in {Kind.TREES, Kind.WORK}:
        return _tree_reason(item.path)
    if item.kind is Kind.REPOSITORIES and item.engine is not None:
        return _repository_reason(item.path, _children(paths.trees / item.engine))
    return None


def _repository_reason(path: Path, trees: Sequence[Path]) -> str | None:
    if trees:
        return f"its trees are still there: {', '.join(tree.name for tree in trees)}"
    try:
        branches = git(path, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/stash").stdout.split()
    except TreeError as error:
        return f"git cannot say whether it has branches of yours ({error}); delete the folder by hand"
    return f"it has branches of yours: {', '.join(branches)}" if branches else None


def _tree_reason(path: Path) -> str | None:
    if path.name.startswith((DELETING, TEMPORARY)) or not (path / ".git").is_file():
        return None  # half-made or half-removed: nothing of a person's can be in it
    try:
        changed = changed_files(path)
        tip = git(path, "rev-parse", "HEAD").stdout
        kept = git(path, "for-each-ref", f"--contains={tip}", "--format=%(refname)").stdout
    except TreeError as error:
        return f"git cannot say whether it has work of yours ({error}); delete the folder by hand"
    if changed:
        return f"it has uncommitted changes: {', '.join(changed[:5])}{' ...' if len(changed) > 5 else ''}"
    # The tip of a series is made again from its patches; other commits that no ref has would be lost.
    if not kept and not tip.startswith(path.name):
        advice = "export them, make a branch, or delete the folder by hand"
        return f"it has commits of yours that no branch holds (HEAD is {tip[:12]}); {advice}"
    return None


def _remove(paths: Paths, item: Item) -> str | None:
    """Why the item is kept, None when it is gone."""
    # Renamed first, so that a kill in the middle leaves nothing that looks whole.
    doomed = item.path.with_name(f"{DELETING}{item.path.name}")
    try:
        with ExitStack() as stack:
            for folder in _holders(paths, item):
                stack.enter_context(removing(paths, folder))
            # Looked at only now: whoever held it until a moment ago may have changed it.
            why = _reason(paths, item)
            if why is not None:
                return why
            item.path.rename(doomed)
            _delete(doomed)
            item.path.with_name(f"{item.path.name}.lock").unlink(missing_ok=True)
    except TreeError:
        return "it is in use by another harness process"
    except OSError as error:
        return f"it cannot be removed: {error}"
    return None


def _holders(paths: Paths, item: Item) -> tuple[Path, ...]:
    """What a process that needs the item holds: the item, or for an archive, whose name it may not know yet, all of them."""
    return (item.path, paths.archives) if item.kind is Kind.ARCHIVES else (item.path,)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _size(path: Path, seen: set[tuple[int, int]]) -> int:
    """Bytes on disk below a path, links not followed."""
    total = 0
    waiting = [path]
    while waiting:
        one = waiting.pop()
        try:
            info = one.lstat()
            if one.is_dir() and not one.is_symlink():
                waiting += [Path(entry.path) for entry in os.scandir(one)]
        except FileNotFoundError:
            continue  # removed by another process meanwhile
        if (info.st_dev, info.st_ino) not in seen:
            seen.add((info.st_dev, info.st_ino))
            total += info.st_blocks * 512
    return total
