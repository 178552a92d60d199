"""Complete a tree with what only the wheel has: one file link for each file that the wheel has and the base lacks."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from filelock import FileLock

from harness.arms.kit import file_hashes
from harness.arms.model import Arm, Environment
from harness.arms.variables import arm_variables, inherited, share_bytecode
from harness.errors import ArmError, TreeError
from harness.git import git, git_bytes
from harness.paths import Paths
from harness.pins.download import sha256_of
from harness.progress import Progress
from harness.trees.model import Tree
from harness.trees.repository import repository
from harness.trees.use import removing
from harness.trees.worktrees import changed_files
from harness.vocabulary import Engine, TreeOrigin

__all__ = ["PACKAGES", "SOURCES", "build_arm", "check_arm", "commit_files", "wheel_files"]

# Import package of each engine, a folder of the tree's import path and of its wheel.
PACKAGES = {Engine.VLLM: "vllm", Engine.SGLANG: "sglang", Engine.FLASHINFER: "flashinfer"}
# What an engine compiles on demand, by where its wheel has it and where its repository has it: the tree's own are used.
SOURCES = {Engine.FLASHINFER: {"flashinfer/data/csrc/": "csrc", "flashinfer/data/include/": "include"}}
# The user's variables are the same for every arm of this process; said once is enough.
_told: set[str] = set()
EXCLUDE_NOTE = "# upkernel: links to the engine's compiled and generated files"


@dataclass(slots=True)
class _Report:
    made: int = 0
    repaired: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def build_arm(paths: Paths, name: str, trees: Iterable[Tree], environment: Environment, progress: Progress) -> Arm:
    """Make an arm of trees on an environment; doing it again repairs links and changes nothing else.

    `name` gives arms of the same content caches of their own (base and its A/A control). Raises ArmError when a link cannot
    be made, the tree would not stay clean, or a run uses it with another environment.
    """
    trees = tuple(trees)
    links: dict[str, str] = {}
    for tree in trees:
        links |= _overlay(paths, tree, environment, progress)
    digest = _digest(trees, links, environment)
    folder = paths.arms / hashlib.sha256(f"{name}\0{digest}".encode()).hexdigest()[:12]
    variables = arm_variables(folder, trees, environment, jit=paths.arms / f"jit-{_jit_key(trees, environment)}")
    share_bytecode(folder, environment)
    _describe(folder / "arm.json", name, digest, trees)
    dropped = tuple(one for one in inherited(os.environ) if one not in _told)
    if dropped:
        _told.update(dropped)
        progress.warn(f"these variables of yours are not passed on to the engines: {', '.join(dropped)}")
    return Arm(name=name, trees=trees, environment=environment, links=links, variables=variables, digest=digest)


def check_arm(arm: Arm) -> None:
    """To be called once the arm's folders are held (`harness.trees.use`): is it still what was built?

    Between the two, another process may have linked a tree to its own environment, or cleaned something away. Raises ArmError.
    """
    environment = arm.environment
    advice = "Another harness process changed or cleaned it since this arm was made: run again."
    for folder in (environment.prefix, *environment.wheels.values(), *(tree.path for tree in arm.trees)):
        if not folder.is_dir():
            raise ArmError(f"{folder} is gone. {advice}")
    for tree in arm.trees:
        inside = [path for path in arm.links if path.startswith(_package_folder(tree) + "/")]
        root = environment.wheels[tree.engine]
        wheel = {one: root / PurePosixPath(one).relative_to(tree.import_root) for one in inside}
        wrong = [one for one in inside if _leads_elsewhere(tree.path / one, wheel[one])]
        missing = [one for one in inside if not (tree.path / one).exists()]
        if wrong or missing:
            raise ArmError(
                f"{tree.path} is not linked to {environment.name} any more: {len(wrong)} links lead elsewhere, "
                f"{len(missing)} are missing (for example {(wrong + missing)[0]}). {advice}"
            )


def wheel_files(wheel: Path) -> Mapping[str, str]:
    """Every file of an unpacked wheel, path -> sha256: as its RECORD says (the wheel's own hash was checked), or a kit's.

    Raises ArmError for a folder that is no unpacked wheel.
    """
    of_kit = file_hashes(wheel)
    if of_kit is not None:
        return of_kit
    record = next(iter(wheel.glob("*.dist-info/RECORD")), None)
    if record is None:
        raise ArmError(f"{wheel} is no unpacked wheel: it has no RECORD. Delete {wheel.parent}.")
    files: dict[str, str] = {}
    with record.open(encoding="utf-8", newline="") as stream:
        for path, encoded, _size in csv.reader(stream):
            algorithm, _, value = encoded.partition("=")
            if algorithm == "sha256":
                files[path] = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
    return files


def commit_files(where: Path, commit: str, prefix: str) -> frozenset[str]:
    """The paths below `prefix` that a commit has, relative to the repository's root."""
    listing = git_bytes(where, "ls-tree", "-r", "-z", "--full-tree", "--name-only", commit, "--", prefix, user_config=True)
    return frozenset(os.fsdecode(one) for one in listing.split(b"\0") if one)


def _overlay(paths: Paths, tree: Tree, environment: Environment, progress: Progress) -> dict[str, str]:
    """Link what the base lacks; returns path in the tree -> sha256 of what stands there."""
    package, root = PACKAGES[tree.engine], _package_folder(tree)
    wheel = environment.wheels[tree.engine]
    in_base = commit_files(repository(paths, tree.engine), tree.base, root)
    # A file that the tip adds where the wheel has one is the series' own.
    in_tip = commit_files(tree.path, tree.tip, root)
    wanted: dict[str, tuple[Path, str | None]] = {}
    for path, sha256 in wheel_files(wheel).items():
        inside = f"{tree.import_root}/{path}" if tree.import_root else path
        ours = path.startswith(f"{package}/") and not path.startswith(tuple(SOURCES.get(tree.engine, {})))
        if ours and inside not in in_base and inside not in in_tip:
            wanted[inside] = (wheel / path, sha256)
    for data, folder in SOURCES.get(tree.engine, {}).items():
        # Walked on the disk: in a checkout of the user's own a new header counts before it is committed.
        files = (one for one in (tree.path / folder).rglob("*") if one.is_file())
        wanted |= {f"{data}{one.relative_to(tree.path / folder)}": (one, None) for one in files}
    report = _Report()
    links: dict[str, str] = {}
    with _lock(paths, tree.path), ExitStack() as stack:
        _exclude(tree.path, wanted)
        stale = _stale(tree.path / root, tree.path, wanted, paths.environments)
        moving = [one for one, (target, _) in wanted.items() if _leads_elsewhere(tree.path / one, target)]
        if stale or moving:
            _hold_alone(stack, paths, tree, environment, [*stale, *moving])
        for inside in stale:
            (tree.path / inside).unlink()
        report.stale += stale
        for inside, (target, of_wheel) in sorted(wanted.items()):
            there = _link(tree.path, inside, target, of_wheel, report)
            if there is not None:
                links[inside] = there
        if report.made or report.repaired or report.stale:
            _check_clean(tree, wanted)
    _say(tree, report, progress)
    return links


def _package_folder(tree: Tree) -> str:
    package = PACKAGES[tree.engine]
    return f"{tree.import_root}/{package}" if tree.import_root else package


def _link(root: Path, inside: str, target: Path, sha256: str | None, report: _Report) -> str | None:
    """`sha256` is None for a link to the tree's own file, whose content the tip tells."""
    link = root / inside
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.parent.resolve().is_relative_to(root.resolve()):
        raise ArmError(f"{link} would lie outside the tree: one of its folders is a link. Make that a real folder.")
    if _leads_elsewhere(link, target):
        report.repaired.append(inside)
        # Replaced in one step: a server of another run may be opening it.
        temporary = link.with_name(f".{link.name}.upkernel")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(link)
    elif link.is_symlink():
        return sha256
    elif link.exists():
        report.kept.append(inside)
        return sha256_of(link)
    else:
        link.symlink_to(target)
        report.made += 1
    return sha256


def _leads_elsewhere(link: Path, target: Path) -> bool:
    return link.is_symlink() and link.readlink() != target


def _stale(package: Path, root: Path, wanted: Mapping[str, object], environments: Path) -> list[str]:
    """Links of ours (they lead into an environment, or to a source of the tree) that nothing asks for."""
    found = []
    for folder, _, names in os.walk(package):
        for name in names:
            path = Path(folder, name)
            inside = str(path.relative_to(root))
            if inside not in wanted and path.is_symlink() and _is_ours(path.readlink(), root, environments):
                found.append(inside)
    return sorted(found)


def _is_ours(target: Path, root: Path, environments: Path) -> bool:
    sources = {folder for of_engine in SOURCES.values() for folder in of_engine.values()}
    return target.is_relative_to(environments) or any(target.is_relative_to(root / folder) for folder in sources)


def _hold_alone(stack: ExitStack, paths: Paths, tree: Tree, environment: Environment, links: Sequence[str]) -> None:
    """Nobody may use the tree while links of it change: a run of theirs would load files of two environments."""
    try:
        stack.enter_context(removing(paths, tree.path))
    except TreeError as error:
        raise ArmError(
            f"{tree.path} is in use by another harness process, and {len(links)} of its links do not lead to "
            f"{environment.name} (for example {links[0]}). A tree has one environment at a time: wait until that run is done."
        ) from error


def _exclude(tree: Path, wanted: Iterable[str]) -> None:
    """Add the links to info/exclude, which all worktrees of a repository share. What is there stays."""
    file = tree / git(tree, "rev-parse", "--git-path", "info/exclude", user_config=True).stdout
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    known = set(text.splitlines())
    new = [line for line in ("/" + re.sub(r"([\\*?\[ ])", r"\\\1", one) for one in sorted(wanted)) if line not in known]
    if not new:
        return
    head = [] if EXCLUDE_NOTE in known else [EXCLUDE_NOTE]
    separator = "" if not text or text.endswith("\n") else "\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.upkernel")
    temporary.write_text(text + separator + "\n".join([*head, *new]) + "\n", encoding="utf-8")
    temporary.replace(file)


def _check_clean(tree: Tree, wanted: Mapping[str, object]) -> None:
    seen = [one for one in changed_files(tree.path, user_config=tree.origin is TreeOrigin.PATH) if one in wanted]
    if seen:
        raise ArmError(
            f"git does not ignore {len(seen)} links in {tree.path} (for example {seen[0]}), although they stand in "
            "info/exclude: a .gitignore of the tree names them again"
        )


def _say(tree: Tree, report: _Report, progress: Progress) -> None:
    if report.made and tree.origin is TreeOrigin.PATH:
        progress.warn(
            f"{report.made} links to the engine's compiled and generated files were put into {tree.path} (git ignores them)"
        )
    elif report.made:
        progress.say(f"{tree.engine} {tree.path.name}: {report.made} links to the engine's compiled and generated files")
    for what, names in (
        ("links pointed elsewhere and were repaired", report.repaired),
        ("links of an earlier environment were removed", report.stale),
        ("files stand where a link would; your own are used", report.kept),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            progress.warn(f"{tree.path}: {len(names)} {what}: {', '.join(names[:3])}{more}")


def _lock(paths: Paths, tree: Path) -> FileLock:
    folder = paths.state / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    # One lock for every worktree of a repository: they share info/exclude.
    common = git(tree, "rev-parse", "--path-format=absolute", "--git-common-dir", user_config=True).stdout
    return FileLock(folder / f"overlay-{hashlib.sha256(common.encode()).hexdigest()[:16]}.lock")


def _jit_key(trees: Iterable[Tree], environment: Environment) -> str:
    """Where FlashInfer keeps what it compiles: by content, so that an edited header is compiled whatever its mtime says.

    Base and control share it, like arms that take FlashInfer from the environment.
    """
    sources = [[tree.tip, tree.changes] for tree in trees if tree.engine is Engine.FLASHINFER]
    return hashlib.sha256(json.dumps([sources, environment.digest]).encode()).hexdigest()[:16]


def _digest(trees: Iterable[Tree], links: Mapping[str, str], environment: Environment) -> str:
    sources = [[tree.engine, tree.tip, tree.changes] for tree in trees]
    content = json.dumps([sources, dict(links), environment.digest], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _describe(file: Path, name: str, digest: str, trees: Iterable[Tree]) -> None:
    """For the person who looks into the folder; nothing reads it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    what = [{"engine": tree.engine, "path": str(tree.path), "tip": tree.tip, "label": tree.label} for tree in trees]
    temporary = file.with_suffix(".part")
    temporary.write_text(json.dumps({"name": name, "digest": digest, "trees": what}, indent=1) + "\n", encoding="utf-8")
    temporary.replace(file)
