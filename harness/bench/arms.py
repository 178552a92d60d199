"""The arms of a bench session: made, compared, and refused where a measured difference would mean nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

from harness.arms.compare import Cause, Difference, DifferenceKind, differences
from harness.arms.model import Arm
from harness.arms.overlay import SOURCES
from harness.arms.resolve import BASE, arm_for
from harness.arms.variables import JIT_VARIABLE
from harness.bench.request import BenchRequest
from harness.context import Context
from harness.errors import ArmError, UsageError
from harness.names import nearest
from harness.pins.model import Pin
from harness.pins.reader import read_pins
from harness.series.lock import Built, check_lock
from harness.series.reader import list_series, read_series
from harness.vocabulary import Engine, Slot, Tier, TreeOrigin

__all__ = ["beside_pin", "folders_of", "is_series", "make_arms"]

# Files that only count once they are compiled, and files that say how.
COMPILED = frozenset({".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".cmake", ".pyx", ".rs"})
BUILD_FILES = frozenset({"CMakeLists.txt", "setup.py"})
SHOWN = 10  # differences named in a message


def is_series(context: Context, what: str) -> bool:
    """Whether it names a series of this checkout. Raises UsageError for what looks like one and is none."""
    known = list_series(context.paths)
    if what in known:
        return True
    engine, _, rest = what.partition("/")
    if engine in set(Engine) and rest and not Path(what).expanduser().exists():
        raise UsageError(f"there is no series {what!r}. {nearest(what, known)} A path of your own must exist.")
    return False


def make_arms(context: Context, request: BenchRequest, pin: Pin) -> dict[Slot, Arm]:
    """The arms of every slot that may run. Each has a name of its own, so caches of its own, like two arms of a series have.

    Raises ArmError when base and patched differ in anything but what is measured, or in what would have to be compiled.
    """
    patched = BASE if request.aa else request.patched
    series = read_series(context.paths, patched) if patched in list_series(context.paths) else None
    if series is not None and series.build:
        raise ArmError(_not_built(patched, "its series.toml says so (build = true)"))
    beside = None if series is None or series.engine is pin.engine else beside_pin(context, pin, series.engine)
    changed = pin.engine if beside is None else beside.engine
    named = {Slot.BASE: (BASE, BASE), Slot.PATCHED: (patched, "base again" if request.aa else patched)}
    if request.tier is Tier.CONFIRM and not request.aa:
        named[Slot.CONTROL] = (BASE, "control")
    arms = {
        slot: arm_for(
            context.paths, pin, what, request.device, context.progress, mirror=request.mirror, name=name, beside=beside
        )
        for slot, (what, name) in named.items()
    }
    for slot, arm in arms.items():
        _check_lock(context, arm, named[slot][0])
    found = differences(arms[Slot.BASE], arms[Slot.PATCHED])
    unexplained = [one for one in found if one.cause is Cause.OTHER]
    if unexplained:
        raise ArmError(
            f"the two arms differ in {len(unexplained)} thing(s) that {patched} does not explain, so a measured difference "
            f"would mean nothing:{_listed(unexplained)}\nList all with: nox -s arms -- {BASE} {patched}"
        )
    compiled = [one for one in found if _is_compiled(one, changed)]
    if compiled:
        raise ArmError(_not_built(patched, f"it changes {len(compiled)} such file(s):{_listed(compiled)}"))
    if not request.aa:
        files = sum(one.kind is DifferenceKind.TREE_FILE for one in found)
        context.progress.say(f"{patched} differs from {pin.name} in {files} file(s), and the arms in nothing else")
    return arms


def beside_pin(context: Context, pin: Pin, engine: Engine) -> Pin:
    """The pin of another engine that `pin` requires, for an arm that combines them. Raises UsageError where there is none."""
    for requirement in map(Requirement, pin.requires):
        for one in read_pins(context.paths.pins_file).of(engine):
            if requirement.name == one.archive.project and requirement.specifier.contains(one.version):
                return one
    raise UsageError(
        f"{pin.name} requires no pinned release of {engine} (it requires {', '.join(pin.requires) or 'none'}), so no arm "
        f"combines the two. Measure a series of {engine} with: nox -s bench_{engine}"
    )


def _is_compiled(one: Difference, engine: Engine) -> bool:
    path = PurePosixPath(one.name)
    # FlashInfer compiles these on demand from the tree; the other engines' wheels hold them compiled.
    compiled = path.suffix in COMPILED and engine not in SOURCES
    return one.kind is DifferenceKind.TREE_FILE and (compiled or path.name in BUILD_FILES)


def _not_built(patched: str, why: str) -> str:
    return (
        f"{patched} changes compiled sources, and both arms would run the pinned wheel's binaries, without the change: {why}\n"
        "Nothing is built here yet. Measure the Python part as a series of its own, or build and measure by hand."
    )


def _listed(found: Iterable[Difference]) -> str:
    lines = [f"\n  {one.kind} {one.name}: {one.a} / {one.b}" for one in found]
    more = f"\n  and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return "".join(lines[:SHOWN]) + more


def _check_lock(context: Context, arm: Arm, what: str) -> None:
    """What others can make again by the same name must be the same commit; a ref or path of the user's own is what it is."""
    for tree in arm.trees:
        if tree.origin in {TreeOrigin.BASE, TreeOrigin.SERIES}:
            series = read_series(context.paths, what) if tree.origin is TreeOrigin.SERIES else None
            pin = read_pins(context.paths.pins_file).find(tree.engine, tree.pin)
            if not check_lock(context.paths.lock_file, Built(pin, tree.source, tree.base, series, tree.tip)):
                context.progress.warn(
                    f"{what} on {pin.name} from {tree.source} is not in {context.paths.lock_file.name} yet, so other machines "
                    "cannot check that they run the same; record it with --update-lock of `nox -s apply`"
                )


def folders_of(arms: Iterable[Arm]) -> frozenset[Path]:
    """What must stay on the disk while these arms run: trees, environments, and the arms' own caches."""
    found: set[Path] = set()
    for arm in arms:
        found |= {tree.path for tree in arm.trees}
        found |= {arm.environment.prefix.parent, Path(arm.variables["PYTHONPYCACHEPREFIX"]).parent}
        found |= {Path(arm.variables[JIT_VARIABLE])}
    return frozenset(found)
