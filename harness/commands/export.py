"""Write the commits of a work tree as the patches of its series.

  nox -s export -- vllm/NAME                       from the series' work tree
  nox -s export -- vllm/NAME --tree ~/vllm         from a checkout of your own that stands on the pin
  nox -s export -- vllm/NAME --tree ~/vllm --base v0.24.0
  nox -s export -- vllm/NAME --pin head            into the port to another pin
  nox -s export -- vllm/NAME --check               write nothing; fail and name what would change

Every commit after the base becomes NNNN-subject.patch. The bytes depend on base and commits alone, and are applied and exported
once more before anything is written. All files are replaced or none. From the work tree upstream/lock.toml gets
the new tip too; from a checkout of your own it does not, which is said.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from harness.context import Context
from harness.pins.model import Pin
from harness.series.model import Series
from harness.vocabulary import ExitCode, Source

__all__ = ["configure", "main"]


@dataclass(frozen=True, slots=True)
class _Work:
    """Commits to export: those after `below` up to `tip`. `base` and `source` are None for a checkout of the user's own."""

    path: Path
    below: str
    tip: str
    base: str | None = None
    source: Source | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("series", metavar="ENGINE/NAME", help="the series")
    parser.add_argument("--tree", type=Path, metavar="PATH", help="a checkout of your own instead of the work tree")
    parser.add_argument(
        "--base", metavar="REF", help="the commit in it that the series starts from (default: found by the pin)"
    )
    parser.add_argument("--pin", metavar="PIN", help="bench, head or a version (default: the one in series.toml)")
    parser.add_argument("--mirror", type=Path, metavar="PATH", help="a local git repository of the engine to take the pin from")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a patch would change")


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.errors import SeriesError, UsageError  # noqa: PLC0415 - keeps --help quick
    from harness.pins.reader import read_pins  # noqa: PLC0415
    from harness.series.export import export_patches, write_export  # noqa: PLC0415
    from harness.series.lock import Built, record  # noqa: PLC0415
    from harness.series.reader import own_patches, read_series  # noqa: PLC0415
    from harness.series.verify import prove_export, stale  # noqa: PLC0415

    paths = context.paths
    series = read_series(paths, args.series)
    pin = read_pins(paths.pins_file).find(series.engine, args.pin or series.pin)
    if args.base and not args.tree:
        raise UsageError("--base names a commit of a checkout of your own: give that with --tree")
    work = _checkout(args, context, series, pin) if args.tree else _work_tree(args, context, series, pin)
    patches = export_patches(work.path, work.below, work.tip)
    tip = prove_export(work.path, work.below, patches)
    changes = stale(own_patches(series, pin.version), patches)
    if args.check and changes:
        lines = "".join(f"\n  {change}" for change in changes)
        raise SeriesError(f"the patches of {series.id} are not what {work.path} exports:{lines}")
    if not args.check:
        write_export(series, patches, pin.version)
        if work.source and work.base:
            record(paths.lock_file, Built(pin, work.source, work.base, series, tip))
        else:
            context.progress.warn(f"upstream/lock.toml still has the old tip: `nox -s apply -- {series.id} --update-lock`")
    for patch in patches:
        print(patch.name)
    print(f"{len(patches)} patch{'es' * (len(patches) > 1)}, {'unchanged' if not changes else 'written'}, tip {tip}")
    if pin.version not in {series.pin, *series.ports}:
        print(f'add "{pin.version}" to ports in {series.directory / "series.toml"}')
    return ExitCode.OK


def _work_tree(args: argparse.Namespace, context: Context, series: Series, pin: Pin) -> _Work:
    from harness.errors import TreeError  # noqa: PLC0415
    from harness.series.verify import own_base  # noqa: PLC0415
    from harness.trees.worktrees import WORK, work_tree  # noqa: PLC0415

    path = context.paths.trees / series.engine / f"{WORK}{series.name}"
    if not path.is_dir():
        raise TreeError(
            f"{series.id} has no work tree to export from: `nox -s apply -- {series.id} --work` makes one, or name a "
            "checkout of your own with --tree"
        )
    _clean(path, own=False)
    tree = work_tree(context.paths, pin, series, progress=context.progress, mirror=args.mirror)
    return _Work(tree.path, own_base(tree.path, tree.base, series, pin), tree.tip, tree.base, tree.source)


def _checkout(args: argparse.Namespace, context: Context, series: Series, pin: Pin) -> _Work:
    from harness.errors import SeriesError  # noqa: PLC0415
    from harness.git import git  # noqa: PLC0415
    from harness.series.lock import read_lock  # noqa: PLC0415
    from harness.series.verify import own_base  # noqa: PLC0415
    from harness.trees.repository import resolve  # noqa: PLC0415

    path = args.tree.expanduser().resolve()
    _clean(path, own=True)
    tip = git(path, "rev-parse", "--verify", "HEAD^{commit}").stdout
    if args.base:
        below = resolve(path, args.base)
        if below is None:
            raise SeriesError(f"{path} has no commit {args.base!r}; --base must name one")
        return _Work(path, below, tip)
    locked = [commit for (name, _), commit in read_lock(context.paths.lock_file).bases.items() if name == pin.name]
    for name in (*locked, f"refs/tags/{pin.tag}", pin.commit or ""):
        base = resolve(path, name)
        # nothing that HEAD lacks, so HEAD stands on it
        if base and git(path, "rev-list", "--count", f"{tip}..{base}").stdout == "0":
            return _Work(path, own_base(path, base, series, pin), tip)
    raise SeriesError(
        f"HEAD of {path} ({tip[:12]}) does not stand on {pin.name} (tag {pin.tag}): rebase onto it, or name the commit that "
        "the series starts from with --base"
    )


def _clean(path: Path, *, own: bool) -> None:
    from harness.errors import TreeError  # noqa: PLC0415
    from harness.trees.worktrees import changed_files  # noqa: PLC0415

    changed = changed_files(path, user_config=own)
    if changed:
        lines = "".join(f"\n  {name}" for name in changed[:10]) + ("\n  ..." if len(changed) > 10 else "")
        raise TreeError(f"{path} has changes that are not committed, so they would be missing; commit or remove them:{lines}")
