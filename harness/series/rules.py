"""upstream/rules.toml: what each engine asks of a contribution."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from harness.errors import SeriesError
from harness.fields import Fields, read_toml
from harness.vocabulary import Engine

__all__ = ["Forbidden", "Rules", "matches", "read_rules"]


@dataclass(frozen=True, slots=True)
class Forbidden:
    """A pattern that added lines may not have, in files that match one of `files` and none of `excepted`."""

    pattern: re.Pattern[str]
    instead: str
    files: tuple[str, ...]
    excepted: tuple[str, ...]


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
    )
    fields.finish()
    return rules


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether a file's whole path matches a glob pattern; `*` matches `/` too."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


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
