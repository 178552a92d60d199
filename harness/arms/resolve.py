"""From what a person names (base, a series, a ref, a path) to an arm that can run."""

from __future__ import annotations

from pathlib import Path

from harness.arms.environment import prepare_environment, with_wheel
from harness.arms.model import Arm
from harness.arms.overlay import build_arm
from harness.git import require_git
from harness.paths import Paths
from harness.pins.model import Pin
from harness.progress import Progress
from harness.series.reader import list_series, read_series
from harness.trees.model import Tree
from harness.trees.user import user_tree
from harness.trees.worktrees import base_tree, patched_tree
from harness.vocabulary import Device, Engine

__all__ = ["BASE", "arm_for", "tree_for"]

BASE = "base"


def arm_for(
    paths: Paths,
    pin: Pin,
    what: str,
    device: Device,
    progress: Progress,
    *,
    mirror: Path | None = None,
    name: str | None = None,
    beside: Pin | None = None,
) -> Arm:
    """The arm that `what` names: "base", a series id, the path of a checkout, or a ref.

    `name` is the arm's own (default: `what`); a control arm gets another one than its base, and so its own caches.
    `beside` is the pin of another engine: the arm is then `pin`'s base, and `what` names the tree of the other engine.

    Raises first, before anything is downloaded, TreeError where there is no git and ProbeError when this machine cannot run
    the engine; then what trees, environment and overlay raise.
    """
    require_git()
    environment = prepare_environment(paths, pin, device, progress)
    if beside is None:
        return build_arm(paths, name or what, (tree_for(paths, pin, what, progress, mirror=mirror),), environment, progress)
    environment = with_wheel(paths, environment, beside, progress)
    # A mirror is of one engine's repository, the one that is changed.
    trees = (tree_for(paths, pin, BASE, progress), tree_for(paths, beside, what, progress, mirror=mirror))
    return build_arm(paths, name or what, trees, environment, progress)


def tree_for(paths: Paths, pin: Pin, what: str, progress: Progress, *, mirror: Path | None = None) -> Tree:
    """The tree that `what` names.

    Raises SeriesError for `ENGINE/NAME` that is neither a series, a path nor a ref, with the nearest names; TreeError for
    anything else that is not there.
    """
    if what == BASE:
        return base_tree(paths, pin, progress=progress, mirror=mirror)
    engine, separator, _ = what.partition("/")
    if what in list_series(paths) or (separator and engine in tuple(Engine) and not Path(what).exists()):
        return patched_tree(paths, pin, read_series(paths, what), progress=progress, mirror=mirror)
    return user_tree(paths, pin, what, progress=progress, mirror=mirror)
