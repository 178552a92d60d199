"""The steps of a port: begin it, go on with it, write it down, give it up."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import tomlkit

from harness.errors import PortError, SeriesError
from harness.files import write_atomically
from harness.git import git
from harness.paths import Paths
from harness.pins.model import Pin
from harness.port.carry import markers
from harness.port.state import PortState, digest, port_tree, read_state, write_state
from harness.progress import Progress
from harness.series.apply import build_tip
from harness.series.export import export_patches, write_export
from harness.series.lock import Built, record
from harness.series.model import Series
from harness.series.patchfile import read_patch
from harness.series.reader import own_patches, read_series
from harness.series.verify import own_base, prove_export
from harness.trees.bases import ensure_base
from harness.trees.repository import locked, repository
from harness.trees.worktrees import changed_files, make_worktree, prune
from harness.vocabulary import Source

__all__ = ["Ported", "abandon", "begin", "finish", "resume"]


@dataclass(frozen=True, slots=True)
class Ported:
    """What a finished port is: the patch files written, the tip they make, and how they differ from the old ones."""

    patches: tuple[str, ...]
    tip: str
    range_diff: str
    left_out: tuple[str, ...]
    moves: tuple[tuple[str, str | None], ...]


def begin(
    paths: Paths,
    series: Series,
    own: Pin,
    pin: Pin,
    progress: Progress,
    *,
    mirror: Path | None,
    source: Source | None,
    redo: bool,
) -> tuple[Path, PortState]:
    """Make the tree of a port to `pin`, at that pin with the series applied that this one is after.

    `own` is the pin that the series' patches are for. Raises PortError when the port is there already (unless `redo`) or was
    begun, SeriesError when a series below does not apply.
    """
    _refuse(paths, series, pin, redo=redo)
    with locked(paths, pin.engine, progress):
        repo = repository(paths, pin.engine)
        before = ensure_base(paths, own, progress, mirror=mirror, source=source)
        old_below = own_base(repo, before.commit, series, own)
        old = build_tip(repo, old_below, series.patches)
        base = ensure_base(paths, pin, progress, mirror=mirror, source=source)
        try:
            below = own_base(repo, base.commit, series, pin)
        except SeriesError as error:
            raise PortError(f"what {series.id} is after does not apply to {pin.name}; port that first: {error}") from error
        tree = port_tree(paths, series, pin.version)
        make_worktree(paths, pin.engine, below, tree, progress)
        state = PortState(
            series=series.id,
            pin=pin.version,
            source=base.source,
            base=base.commit,
            below=below,
            old_below=old_below,
            old=old,
            patches=tuple(patch.name for patch in series.patches),
            sources=digest(series.patches),
            head=below,
        )
        write_state(tree, state)
    return tree, state


def resume(paths: Paths, series: Series, pin: Pin) -> tuple[Path, PortState]:
    """The tree and state of a port that was begun. Raises PortError when there is none, or the series has changed since."""
    tree = port_tree(paths, series, pin.version)
    if not tree.is_dir():
        raise PortError(f"no port of {series.id} to {pin.name} was begun: run it without --continue")
    state = read_state(tree)
    if state.sources != digest(series.patches):
        raise PortError(
            f"the patches of {series.id} have changed since this port was begun: give it up with --abort, begin anew"
        )
    return tree, state


def finish(paths: Paths, series: Series, pin: Pin, tree: Path, state: PortState) -> Ported:
    """Export the tree's commits to ports/PIN, list the pin in series.toml, lock the tip, and remove the tree.

    Raises PortError when a commit adds conflict markers or nothing is left of the series, SeriesError when the commits do not
    survive as patches; the tree is then still there.
    """
    changed = changed_files(tree)
    if changed:
        names = "\n  ".join(changed)
        raise PortError(f"{tree} has changes that no commit has; commit or undo them, then --continue:\n  {names}")
    head = git(tree, "rev-parse", "--verify", "HEAD^{commit}").stdout
    if head == state.below:
        raise PortError(
            f"nothing is left of {series.id} on {pin.name}: it has it already, or every patch was skipped; --abort tidies up"
        )
    patches = export_patches(tree, state.below, head)
    names = git(tree, "-c", "core.quotePath=false", "diff", "--name-only", "--no-renames", state.below, head).stdout
    left = markers(tree, names.splitlines())
    if left:
        raise PortError(f"conflict markers were committed in {tree}; amend the commit:\n  " + "\n  ".join(left))
    tip = prove_export(tree, state.below, patches)
    difference = git(tree, "range-diff", "--no-color", f"{state.old_below}..{state.old}", f"{state.below}..{head}").stdout
    write_export(series, patches, pin.version)
    _list_port(series, pin.version)
    record(paths.lock_file, Built(pin, state.source, state.base, read_series(paths, series.id), tip))
    _remove(tree)
    return Ported(tuple(one.name for one in patches), tip, difference, state.left_out, state.moves)


def abandon(paths: Paths, series: Series, pin: Pin, progress: Progress) -> None:
    """Remove the tree of a port that was begun, and what was done in it. Raises PortError when there is none."""
    tree = port_tree(paths, series, pin.version)
    if not tree.is_dir():
        raise PortError(f"no port of {series.id} to {pin.name} was begun")
    _remove(tree)
    with locked(paths, pin.engine, progress):
        prune(paths, pin.engine)


def _refuse(paths: Paths, series: Series, pin: Pin, *, redo: bool) -> None:
    if pin.version == series.pin:
        raise PortError(f"{pin.name} is the pin that {series.id} is for: its patches are already there, in {series.directory}")
    if not series.patches:
        raise PortError(f"{series.id} has no patches yet: `nox -s export -- {series.id}` first")
    if (pin.version in series.ports or own_patches(series, pin.version)) and not redo:
        raise PortError(
            f"{series.id} has a port to {pin.name} already, in {series.directory / 'ports' / pin.version}. To make it again "
            "from the patches of its own pin, add --redo: the old one stays until the new one is finished"
        )
    tree = port_tree(paths, series, pin.version)
    if tree.exists():
        raise PortError(
            f"a port of {series.id} to {pin.name} was begun in {tree}: go on with --continue, or give it up with --abort"
        )
    for patch in series.patches:
        read_patch(patch)


def _list_port(series: Series, version: str) -> None:
    """Add the pin to `ports` in series.toml; everything else in the file stays as it is."""
    file = series.directory / "series.toml"
    document = tomlkit.parse(file.read_text(encoding="utf-8"))
    ports = document["ports"]
    if version not in ports:
        ports.append(version)
        write_atomically(file, tomlkit.dumps(document), SeriesError)


def _remove(tree: Path) -> None:
    repo = Path(tree, git(tree, "rev-parse", "--git-common-dir").stdout).resolve()
    shutil.rmtree(tree)
    git(repo, "worktree", "prune", "--expire=now")
