"""Typed reading of one TOML table; a missing field, a malformed one and an unknown one give different messages."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import SeriesError
from harness.names import nearest

__all__ = ["Fields", "read_table"]

E = TypeVar("E", bound=StrEnum)


def read_table(path: Path) -> Fields:
    """The top table of a TOML file. Raises SeriesError with the line when it is not TOML, and when there is no such file."""
    try:
        return Fields(path, tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise SeriesError(f"{path} is missing") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SeriesError(f"{path} is not valid TOML: {error}") from error


class Fields:
    """One table. Each getter marks its field as known; `finish` refuses what is left."""

    def __init__(self, path: Path, table: Mapping[str, Any], prefix: str = "") -> None:
        self._path = path
        self._table = table
        self._prefix = prefix
        self._known: set[str] = set()

    def has(self, key: str) -> bool:
        self._known.add(key)
        return key in self._table

    def take(self, key: str, want: str) -> Any:
        """The raw value of a field that must be there."""
        if not self.has(key):
            raise SeriesError(f"{self._path}: field {self._prefix + key!r} is missing; it must be {want}")
        return self._table[key]

    def malformed(self, key: str, value: object, want: str) -> SeriesError:
        return SeriesError(f"{self._path}: field {self._prefix + key!r} is malformed: got {value!r}, it must be {want}")

    def text(self, key: str) -> str:
        """A string, without space around it; it may be empty (a draft's text is still to be written)."""
        want = "a string"
        value = self.take(key, want)
        if not isinstance(value, str):
            raise self.malformed(key, value, want)
        return value.strip()

    def texts(self, key: str) -> tuple[str, ...]:
        want = "a list of non-empty strings"
        value = self.take(key, want)
        if not isinstance(value, list) or not all(isinstance(one, str) and one.strip() for one in value):
            raise self.malformed(key, value, want)
        return tuple(one.strip() for one in value)

    def flag(self, key: str) -> bool:
        want = "true or false"
        value = self.take(key, want)
        if not isinstance(value, bool):
            raise self.malformed(key, value, want)
        return value

    def whole(self, key: str) -> int:
        want = "a whole number, 0 or more"
        value = self.take(key, want)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.malformed(key, value, want)
        return value

    def date(self, key: str) -> datetime.date:
        want = "a date without quotes, such as 2026-12-01"
        value = self.take(key, want)
        if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
            raise self.malformed(key, value, want)
        return value

    def choice(self, key: str, kind: type[E]) -> E:
        want = "one of " + ", ".join(kind)
        value = self.take(key, want)
        if not isinstance(value, str) or value not in tuple(kind):
            raise self.malformed(key, value, want)
        return kind(value)

    def table(self, key: str, want: str = "a table") -> Fields:
        value = self.take(key, want)
        if not isinstance(value, dict):
            raise self.malformed(key, value, want)
        return Fields(self._path, value, f"{self._prefix}{key}.")

    def tables(self, key: str) -> tuple[Fields, ...]:
        want = "a list of tables"
        value = self.take(key, want)
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self.malformed(key, value, want)
        return tuple(Fields(self._path, one, f"{self._prefix}{key}[{index}].") for index, one in enumerate(value))

    def finish(self) -> None:
        """Refuse fields that no getter asked for."""
        unknown = sorted(set(self._table) - self._known)
        if unknown:
            raise SeriesError(f"{self._path}: unknown field {self._prefix + unknown[0]!r}. {nearest(unknown[0], self._known)}")
