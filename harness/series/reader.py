"""Read series.toml and the patch files beside it."""

from __future__ import annotations

import re
from pathlib import Path

from harness.errors import SeriesError, UnknownSeriesError
from harness.fields import Fields, read_toml
from harness.names import nearest
from harness.paths import Paths
from harness.series.model import Claim, DuplicateCheck, PullRequestNotes, Series
from harness.series.store import PATCH_GLOB, finish_export
from harness.vocabulary import Engine, SeriesStatus

__all__ = ["check_name", "list_series", "own_patches", "parse_id", "patches_for", "read_series", "stack"]

FILE = "series.toml"
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
VERSION = re.compile(r"\d+(\.\d+)+\S*")


def parse_id(text: str) -> tuple[Engine, str]:
    """Split vllm/some-name into engine and name. Raises UnknownSeriesError when it is not of that form."""
    engine, separator, name = text.partition("/")
    if engine not in tuple(Engine):
        raise UnknownSeriesError(f"{text!r} is not a series: it must start with an engine's name. {nearest(engine, Engine)}")
    if not separator or not NAME.fullmatch(name):
        raise UnknownSeriesError(
            f"{text!r} is not a series: write {engine}/NAME, where NAME is lower-case words and numbers joined by hyphens"
        )
    return Engine(engine), name


def list_series(paths: Paths) -> tuple[str, ...]:
    """The ids of all series in the checkout, sorted."""
    return _ids(paths.patches)


def read_series(paths: Paths, name: str) -> Series:
    """The series `name` ("vllm/x").

    Raises UnknownSeriesError (with the nearest names), and SeriesError for a series.toml with a missing, malformed or unknown
    field. An export that was killed half-way is finished first.
    """
    return _read(paths.patches, name)


def check_name(paths: Paths, name: str) -> None:
    """Raises UnknownSeriesError, with the nearest names, when there is no series `name`."""
    _known(paths.patches, name)


def stack(series: Series) -> tuple[Series, ...]:
    """The series that `series` stands on, in the order in which they are applied, and then itself.

    Raises SeriesError when they stand on each other in a circle, on a series that is not there, or on another engine's series.
    """
    root = series.directory.parent.parent
    known = _ids(root)
    order: list[Series] = []

    def add(one: Series, above: tuple[str, ...]) -> None:
        if one.id in above:
            raise SeriesError("these series are after each other in a circle: " + " -> ".join((*above, one.id)))
        if any(one.id == other.id for other in order):
            return
        for name in one.after:
            if parse_id(name)[0] is not series.engine:
                raise SeriesError(f"{one.directory / FILE}: {one.id} cannot be after {name}: that is another engine's series")
            if name not in known:
                raise SeriesError(
                    f"{one.directory / FILE}: it is after one that is missing: there is no series {name!r}. "
                    f"{nearest(name, known)}"
                )
            add(_read(root, name), (*above, one.id))
        order.append(one)

    add(series, ())
    return tuple(order)


def patches_for(series: Series, pin: str) -> tuple[Path, ...]:
    """The patch files for the pin of that version: the port to it where there is one, else those for the bench pin.

    Raises SeriesError when there are none yet.
    """
    patches = own_patches(series, pin) if pin in series.ports else series.patches
    if not patches:
        raise SeriesError(f"{series.id} has no patches yet: commit in its work tree, then run `nox -s export -- {series.id}`")
    return patches


def own_patches(series: Series, pin: str) -> tuple[Path, ...]:
    """The patch files that an export for that pin would replace: those beside series.toml, or those of the port."""
    return series.patches if pin == series.pin else _patch_files(series.directory / "ports" / pin)


def _ids(root: Path) -> tuple[str, ...]:
    return tuple(sorted(f"{file.parent.parent.name}/{file.parent.name}" for file in root.glob(f"*/*/{FILE}")))


def _known(root: Path, name: str) -> None:
    known = _ids(root)
    if name not in known:
        raise UnknownSeriesError(f"there is no series {name!r}. {nearest(name, known)} To start one: `nox -s new -- {name}`.")


def _read(root: Path, name: str) -> Series:
    _known(root, name)
    engine, plain = parse_id(name)
    directory = root / engine / plain
    finish_export(directory)
    file = directory / FILE
    fields = Fields(str(file), read_toml(file, SeriesError), SeriesError)
    series = Series(
        engine=engine,
        name=plain,
        directory=directory,
        title=fields.draft("title"),
        why=fields.draft("why"),
        links=fields.texts("links"),
        after=fields.texts("after"),
        duplicates=_duplicates(fields),
        status=fields.choice("status", SeriesStatus),
        status_date=fields.date("status_date"),
        pin=fields.text("pin", "the version of a pin, such as 0.24.0", pattern=VERSION),
        ports=fields.texts("ports"),
        workloads=fields.texts("workloads"),
        upstream_tests=fields.texts("upstream_tests"),
        evidence=fields.texts("evidence"),
        build=fields.flag("build"),
        removal=fields.draft("removal"),
        patches=_patch_files(directory),
        pr=_pull_request(fields),
    )
    fields.finish()
    return series


def _duplicates(fields: Fields) -> DuplicateCheck | None:
    """Nobody has looked yet while the table is not there; a lint rule insists on it, the reader does not."""
    if not fields.has("duplicates"):
        return None
    table = fields.table("duplicates", "a table with date and links")
    check = DuplicateCheck(date=table.date("date"), links=table.texts("links"))
    table.finish()
    return check


def _pull_request(fields: Fields) -> PullRequestNotes | None:
    """The table [pr], which a series has once somebody thinks of sending it. `nox -s pr` insists on what it says."""
    if not fields.has("pr"):
        return None
    table = fields.table("pr", "a table; `nox -s pr` lists its fields")
    claim = table.table("claim", "a table with kernel, share, predicted and measured")
    notes = PullRequestNotes(
        number=table.draft("number"),
        device=table.draft("device"),
        claim=Claim(claim.draft("kernel"), claim.draft("share"), claim.draft("predicted"), claim.draft("measured")),
        differs=table.draft("differs"),
        exactness=table.draft("exactness"),
        reproduce=table.texts("reproduce"),
        evaluations=table.texts("evaluations"),
        not_run=table.draft("not_run"),
        ai_assistance=table.draft("ai_assistance"),
        duplicates_checked=table.date("duplicates_checked") if table.has("duplicates_checked") else None,
    )
    claim.finish()
    table.finish()
    return notes


def _patch_files(directory: Path) -> tuple[Path, ...]:
    return tuple(sorted(directory.glob(PATCH_GLOB)))
