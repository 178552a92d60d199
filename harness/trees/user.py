"""Trees of the user's own: a ref of the engine's repository, or a checkout as it lies, uncommitted changes included."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from harness.errors import TreeError, UnknownTreeError
from harness.git import GitCommandError, git
from harness.paths import Paths
from harness.pins.model import Pin
from harness.progress import Progress
from harness.trees.bases import ensure_base, fetch_ref
from harness.trees.model import Tree
from harness.trees.repository import locked, repository, resolve
from harness.trees.worktrees import changed_files, tree_of, worktree
from harness.vocabulary import Engine, Source, TreeOrigin

__all__ = ["user_changes", "user_tree"]

# A file that only a checkout of that engine has.
MARKERS = {
    Engine.VLLM: "vllm/__init__.py",
    Engine.SGLANG: "python/sglang/__init__.py",
    Engine.FLASHINFER: "flashinfer/__init__.py",
}


def user_tree(
    paths: Paths, pin: Pin, what: str, *, progress: Progress, mirror: Path | None = None, source: Source | None = None
) -> Tree:
    """The tree that `what` names: the path of a checkout, else a ref (commit, branch, tag).

    A ref is looked up in the engine's repository, then in the mirror or at the pin's URL, and gets a worktree of its own. A
    checkout is used where it lies and may have uncommitted changes; `Tree.changes` is their hash. `pin` says which base and
    environment it is compared on.

    Raises TreeError: neither a path nor a ref (nearest names given), not a checkout, a checkout of another engine.
    """
    with locked(paths, pin.engine, progress):
        base = ensure_base(paths, pin, progress, mirror=mirror, source=source)
        given = Path(what).expanduser()
        if given.is_dir():
            return _checkout(
                pin, given.resolve(), tree_of(pin, given.resolve(), base, tip="", origin=TreeOrigin.PATH, label=what)
            )
        if given.is_absolute() or what.startswith((".", "~")):
            raise UnknownTreeError(f"{what} is not a folder; give the path of a {pin.engine} checkout, a ref, or a series")
        repo = repository(paths, pin.engine)
        commit = resolve(repo, what) or fetch_ref(repo, pin, what, str(mirror.resolve()) if mirror else pin.git_url)
        path = worktree(paths, pin.engine, commit, progress)
    _check_engine(pin.engine, path)
    return tree_of(pin, path, base, tip=commit, origin=TreeOrigin.REF, label=what)


def _checkout(pin: Pin, path: Path, tree: Tree) -> Tree:
    try:
        top = git(path, "rev-parse", "--show-toplevel", user_config=True).stdout
        tip = git(path, "rev-parse", "--verify", "HEAD^{commit}", user_config=True).stdout
    except GitCommandError as error:
        raise TreeError(f"{path} is not a git checkout with a commit, so evidence could not name what ran: {error}") from error
    if Path(top).resolve() != path:
        raise TreeError(f"{path} is a folder inside the checkout {top}; give the checkout's own path")
    _check_engine(pin.engine, path)
    return replace(tree, tip=tip, changes=user_changes(path))


def _check_engine(engine: Engine, path: Path) -> None:
    if (path / MARKERS[engine]).is_file():
        return
    others = [str(one) for one, marker in MARKERS.items() if (path / marker).is_file()]
    looks = f"it looks like {' and '.join(others)}" if others else f"it has no {MARKERS[engine]}"
    raise TreeError(f"{path} is not a checkout of {engine}: {looks}")


def user_changes(path: Path) -> str | None:
    """Hash of what differs from HEAD: names, modes and contents, so that no diff setting matters. None when nothing does."""
    names = sorted(changed_files(path, user_config=True))
    if not names:
        return None
    digest = hashlib.sha256()
    for name in names:
        file = path / name
        if file.is_symlink():
            kind, content = b"link", os.fsencode(file.readlink())
        elif file.is_file():
            kind, content = b"executable" if os.access(file, os.X_OK) else b"file", file.read_bytes()
        else:
            kind, content = b"gone", b""
        for part in (os.fsencode(name), kind, hashlib.sha256(content).digest()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
