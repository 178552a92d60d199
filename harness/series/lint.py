"""What a reviewer would send back without reading further: about the series, and about each of its patches."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harness.series.lint_patch import lint_patches
from harness.series.model import Series
from harness.series.rules import Rules
from harness.vocabulary import SeriesStatus

__all__ = ["Finding", "Severity", "lint_series"]

# Statuses that claim the series is fit to be read by others.
CLAIMED = frozenset({SeriesStatus.READY, SeriesStatus.SUBMITTED, SeriesStatus.MERGED})


class Severity(StrEnum):
    """error fails the check; todo is what a draft may still lack, and becomes an error when the status says more."""

    ERROR = "error"
    TODO = "to do"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to mend. `where` is a file of the series, with the place in the engine's source for an added line."""

    series: str
    where: str
    message: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        return f"{self.series}: {self.severity}: {self.where}: {self.message}"


def lint_series(series: Series, rules: Rules, *, today: datetime.date | None = None) -> tuple[Finding, ...]:
    """Everything that is wrong with a series, its ports included; nothing is applied."""
    found = [*_description(series, today or datetime.datetime.now(tz=datetime.UTC).date()), *_ports(series)]
    for patches in (series.patches, *(_files(series.directory / "ports" / port) for port in series.ports)):
        found += _numbers(series, patches)
        found += [Finding(series.id, where, message) for where, message in lint_patches(patches, rules)]
    return tuple(found)


def _description(series: Series, today: datetime.date) -> Iterator[Finding]:
    where = "series.toml"
    # what a draft may still lack, and a series that claims to be done may not
    lacking = Severity.TODO if series.status is SeriesStatus.DRAFT else Severity.ERROR
    yield from (Finding(series.id, where, message, lacking) for message in _lacking(series))
    yield from (Finding(series.id, where, message) for message in _wrong(series, today))


def _lacking(series: Series) -> Iterator[str]:
    for name, text in (("title", series.title), ("why", series.why), ("removal", series.removal)):
        if not text:
            yield f"{name} is empty"
    if not series.links:
        yield "links is empty: name the upstream issue or pull request that it is about"
    if series.duplicates is None:
        yield "duplicates is missing: search upstream for competing pull requests, then note date and links"
    if not series.patches:
        yield f"there are no patches: `nox -s export -- {series.id}` writes them"


def _wrong(series: Series, today: datetime.date) -> Iterator[str]:
    for link in (*series.links, *(series.duplicates.links if series.duplicates else ())):
        if not link.startswith("https://"):
            yield f"{link!r} is not a link; write the whole https:// address"
    for name, date in (("status_date", series.status_date), ("duplicates.date", series.duplicates and series.duplicates.date)):
        if date and date > today:
            yield f"{name} is in the future: {date}"
    if series.status in CLAIMED and not series.evidence:
        yield f"status {series.status} needs evidence: the result file of an experiment"
    for name in series.evidence:
        if not (series.directory / name).is_file():
            yield f"evidence {name!r} is not there"
    workloads = series.directory.parents[2] / "workloads"
    for name in series.workloads:
        if not any((workloads / f"{name}{ending}").is_file() for ending in (".toml", ".py")):
            yield f"workload {name!r} is not in {workloads.name}/"


def _ports(series: Series) -> Iterator[Finding]:
    folder = series.directory / "ports"
    there = {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()
    for port in sorted(there - set(series.ports)):
        yield Finding(series.id, f"ports/{port}", "is not listed in series.toml (ports)")
    for port in series.ports:
        if not _files(folder / port):
            yield Finding(series.id, "series.toml", f"port {port!r} has no patches in ports/{port}/")


def _files(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(folder.glob("*.patch")))


def _numbers(series: Series, patches: tuple[Path, ...]) -> Iterator[Finding]:
    for file in _files(patches[0].parent if patches else series.directory):
        if not (file.name[:4].isdigit() and file.name[4:5] == "-"):
            yield Finding(series.id, file.name, "is not called NNNN-words.patch, so nothing applies it")
    for number, file in enumerate(patches, start=1):
        if file.name[:4] != f"{number:04d}":
            yield Finding(series.id, file.name, f"should have number {number:04d}: numbers go up from 0001 without gaps")
