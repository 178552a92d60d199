"""upstream/rules.toml: what each engine asks of a contribution."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

from harness.errors import SeriesError
from harness.fields import Fields, read_toml
from harness.vocabulary import Engine

__all__ = ["Forbidden", "Linter", "Page", "Part", "Rules", "Section", "matches", "read_rules"]


@dataclass(frozen=True, slots=True)
class Forbidden:
    """A pattern that added lines may not have, in files that match one of `files` and none of `excepted`."""

    pattern: re.Pattern[str]
    instead: str
    files: tuple[str, ...]
    excepted: tuple[str, ...]


PACKAGE = re.compile(r"[A-Za-z0-9_-]+==[0-9][0-9A-Za-z.]*")


class Part(StrEnum):
    """What a pull request's page says; every engine's template has its own headings for it."""

    SUMMARY = "summary"
    CLAIMS = "claims"
    MEASUREMENTS = "measurements"
    EXACTNESS = "exactness"
    TESTS = "tests"
    REPRODUCTION = "reproduction"
    EVALUATIONS = "evaluations"
    DETAILS = "details"
    DUPLICATES = "duplicates"
    LINT = "lint"
    DISCLOSURE = "disclosure"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading of the engine's template, without marks and pictures, and what goes below it."""

    heading: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Linter:
    """One of the engine's linters: the package in the version that the engine pins, the command without the file, the files it
    is for, the file of the repository that has its settings, and the arguments that stand in for that where the source has not.
    """

    package: str
    run: tuple[str, ...]
    files: tuple[str, ...]
    config: str
    without: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.package} {self.run[1]}" if len(self.run) > 1 and not self.run[1].startswith("-") else self.package


@dataclass(frozen=True, slots=True)
class Page:
    """The engine's pull request template: its file in the repository, where the headings were read and when, and what else
    a pull request needs.
    """

    template: str
    source: str
    date: datetime.date
    sections: tuple[Section, ...]
    # Commands that run the engine's linters with its own configuration.
    linters: tuple[str, ...]
    # How to look for duplicates.
    duplicates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """The checkable rules of one engine; an empty tuple and a None mean that it has no such rule."""

    engine: Engine
    source: str
    date: datetime.date
    title_prefixes: tuple[str, ...]
    spdx: tuple[str, ...]
    columns: int | None
    tests: tuple[str, ...]
    exempt: tuple[str, ...]
    forbidden: tuple[Forbidden, ...]
    # None where the file has no pull request rules of the engine.
    page: Page | None = None
    linters: tuple[Linter, ...] = ()


def read_rules(path: Path, engine: Engine) -> Rules:
    """The rules of an engine. Raises SeriesError, naming file and field, when they are missing or malformed."""
    table = Fields(str(path), read_toml(path, SeriesError), SeriesError)
    fields = table.table(engine, "a table of the engine's rules")
    rules = Rules(
        engine=engine,
        source=fields.text("source"),
        date=fields.date("date"),
        title_prefixes=fields.texts("title_prefixes"),
        spdx=fields.texts("spdx"),
        columns=fields.whole("columns") or None,
        tests=fields.texts("tests"),
        exempt=fields.texts("exempt"),
        forbidden=tuple(_forbidden(one) for one in fields.tables("forbidden")),
        page=_page(fields),
        linters=tuple(_linter(one) for one in fields.tables("linters")) if fields.has("linters") else (),
    )
    fields.finish()
    return rules


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether a file's whole path matches a glob pattern; `*` matches `/` too."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _page(fields: Fields) -> Page | None:
    if not fields.has("pr"):
        return None
    table = fields.table("pr")
    page = Page(
        template=table.text("template"),
        source=table.text("source"),
        date=table.date("date"),
        sections=tuple(_section(one) for one in table.tables("sections")),
        linters=table.texts("linters"),
        duplicates=table.texts("duplicates"),
    )
    table.finish()
    placed = [part for section in page.sections for part in section.parts]
    wrong = [part for part in Part if placed.count(part) != 1]
    if wrong:
        raise table.malformed("sections", placed, f"a place for each part, once; it is not so for {', '.join(wrong)}")
    return page


def _linter(fields: Fields) -> Linter:
    linter = Linter(
        package=fields.text("package", "a package with its version, such as ruff==0.14.0", pattern=PACKAGE),
        run=fields.texts("run"),
        files=fields.texts("files"),
        config=fields.text("config"),
        without=fields.texts("without"),
    )
    fields.finish()
    return linter


def _section(fields: Fields) -> Section:
    want = "a list out of " + ", ".join(Part)
    parts = fields.texts("parts", want)
    unknown = [part for part in parts if part not in tuple(Part)]
    if unknown:
        raise fields.malformed("parts", list(parts), want)
    section = Section(fields.text("heading"), tuple(Part(part) for part in parts))
    fields.finish()
    return section


def _forbidden(fields: Fields) -> Forbidden:
    text = fields.text("pattern")
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise fields.malformed("pattern", text, f"a regular expression ({error})") from error
    rule = Forbidden(
        pattern=pattern, instead=fields.text("instead"), files=fields.texts("files"), excepted=fields.texts("except")
    )
    fields.finish()
    return rule
