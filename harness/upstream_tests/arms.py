"""The two trees that are tested: made by the harness, or folders of the user's own that are proved to be what they say."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.arms.resolve import BASE, arm_for
from harness.arms.variables import arm_environment
from harness.context import Context
from harness.errors import ArmError
from harness.pins.model import Pin
from harness.series.lock import Built, check_lock, read_lock
from harness.series.model import Series
from harness.series.patchfile import blobs
from harness.series.reader import patches_for, stack
from harness.trees.worktrees import IMPORT_ROOTS
from harness.vocabulary import Device, Source

__all__ = ["TestArm", "arms_of_folders", "made_arms"]


@dataclass(frozen=True, slots=True)
class TestArm:
    """`root` is the tree, in the layout of the engine's repository; `tip` the commit that it is."""

    __test__ = False

    name: str
    root: Path
    python: Path
    environment: Mapping[str, str]
    tip: str
    source: Source


def made_arms(context: Context, series: Series, pin: Pin, device: Device, mirror: Path | None) -> tuple[TestArm, TestArm]:
    """Base and patched as the bench sessions make them. Raises what these raise; warns where the tip is not locked yet."""
    made = []
    for what in (BASE, series.id):
        arm = arm_for(context.paths, pin, what, device, context.progress, mirror=mirror)
        (tree,) = arm.trees
        locked = what == BASE or check_lock(context.paths.lock_file, Built(pin, tree.source, tree.base, series, tree.tip))
        if not locked:
            context.progress.warn(f"{series.id} on {pin.name} from {tree.source} is not in upstream/lock.toml yet")
        made.append(TestArm(what, tree.path, arm.environment.python, arm_environment(arm, {}), tree.tip, tree.source))
    return made[0], made[1]


def arms_of_folders(
    context: Context, series: Series, pin: Pin, folders: tuple[Path, Path], python: Path
) -> tuple[TestArm, TestArm]:
    """Two folders that somebody unpacked and patched by hand, on a host without git or the harness's environments.

    Each file that the series changes must have the content that the patches say, before and after: git's own hash of it. Raises
    ArmError where one has not, or where upstream/lock.toml has no tip that the result could name.
    """
    base, patched = folders
    lock = read_lock(context.paths.lock_file)
    source = next((one for one in Source if (series.id, pin.version, one) in lock.tips), None)
    if source is None:
        raise ArmError(f"upstream/lock.toml has no tip of {series.id} on {pin.name}: `nox -s apply` with --update-lock first")
    before, after = _contents(series, pin)
    wrong = [f"{base}: {name} is {found}" for name, found in _differing(base, before)]
    wrong += [f"{patched}: {name} is {found}" for name, found in _differing(patched, after)]
    if wrong:
        raise ArmError(f"these folders are not {pin.name} and {series.id} on it:\n  " + "\n  ".join(wrong))
    made = []
    for name, folder, tip in (
        (BASE, base, lock.bases.get((pin.name, source), "")),
        (series.id, patched, lock.tips[series.id, pin.version, source]),
    ):
        root = folder.resolve()
        # what the user has on the path (metadata of an engine that is not installed, say) comes after the tree
        search = os.pathsep.join([str(root / IMPORT_ROOTS[series.engine]), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "UPKERNEL_"))}
        environment |= {"PYTHONPATH": search, "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        made.append(TestArm(name, root, python, environment, tip, source))
    return made[0], made[1]


def _contents(series: Series, pin: Pin) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """Path -> git's hash of its content (None: no such file), of the base and of the tip, for every file of the series."""
    before: dict[str, str | None] = {}
    after: dict[str, str | None] = {}
    for one in stack(series):
        for patch in patches_for(one, pin.version):
            for path, old, new in blobs(patch):
                before.setdefault(path, old)
                after[path] = new
    return before, after


def _differing(root: Path, expected: Mapping[str, str | None]) -> list[tuple[str, str]]:
    found = []
    for path, blob in expected.items():
        file = root / path
        content = file.read_bytes() if file.is_file() else None
        have = (
            None if content is None else hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        )
        if have != blob:
            found.append((path, "missing" if have is None else "another file" if blob else "there, and should not be"))
    return found
