"""Typed reading of one TOML table; a missing field, a malformed one and an unknown one give different messages."""

from __future__ import annotations

import datetime
import math
import re
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import UpkernelError
from harness.names import nearest

__all__ = ["Fields", "read_toml"]

E = TypeVar("E", bound=StrEnum)


def read_toml(path: Path, error: type[UpkernelError]) -> dict[str, Any]:
    """The parsed file. Raises `error` when there is no such file, and with the line when it is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise error(f"{path} does not exist") from cause
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise error(f"{path} is not valid TOML: {cause}") from cause


class Fields:
    """One table. Each getter marks its field as known; `finish` refuses what is left.

    `place` begins every message: the file, and where it helps what the table is ("pins.toml: pin vllm 0.24.0").
    """

    def __init__(self, place: str, table: object, error: type[UpkernelError], prefix: str = "") -> None:
        if not isinstance(table, Mapping):
            raise error(f"{place} must be a table, got {table!r}")
        self._place = place
        self._table: Mapping[str, Any] = table
        self._error = error
        self._prefix = prefix
        self._known: set[str] = set()

    def has(self, key: str) -> bool:
        self._known.add(key)
        return key in self._table

    def take(self, key: str, want: str) -> Any:
        """The raw value of a field that must be there."""
        if not self.has(key):
            raise self._error(f"{self._place}: field {self._prefix + key!r} is missing; it must be {want}")
        return self._table[key]

    def malformed(self, key: str, value: object, want: str) -> UpkernelError:
        """The error for a value that is there and wrong, for the caller to raise."""
        return self._error(f"{self._place}: field {self._prefix + key!r} is malformed: got {value!r}, it must be {want}")

    def schema(self, supported: int) -> None:
        """Refuse a file of another schema version before its other fields are looked at."""
        value = self.take("schema", str(supported))
        if value != supported or isinstance(value, bool):
            raise self._error(
                f"{self._place}: field 'schema' is {value!r}, this checkout reads {supported}; update the file or the checkout"
            )

    def text(self, key: str, want: str = "a non-empty string", *, pattern: re.Pattern[str] | None = None) -> str:
        value = self.take(key, want)
        if not isinstance(value, str) or not value.strip() or (pattern and not pattern.fullmatch(value)):
            raise self.malformed(key, value, want)
        return value.strip()

    def draft(self, key: str) -> str:
        """A string that may be empty, because it is still to be written."""
        want = "a string"
        value = self.take(key, want)
        if not isinstance(value, str):
            raise self.malformed(key, value, want)
        return value.strip()

    def texts(self, key: str, want: str = "a list of non-empty strings") -> tuple[str, ...]:
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

    def whole(self, key: str, *, least: int = 0) -> int:
        want = f"a whole number of at least {least}"
        value = self.take(key, want)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.malformed(key, value, want)
        return value

    def seconds(self, key: str) -> float:
        want = "a number of seconds above 0"
        value = self.take(key, want)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.malformed(key, value, want)
        return float(value)

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

    def choices(self, key: str, kind: type[E]) -> tuple[E, ...]:
        want = "a non-empty list out of " + ", ".join(kind)
        value = self.take(key, want)
        if not isinstance(value, list) or not value or not all(isinstance(one, str) and one in tuple(kind) for one in value):
            raise self.malformed(key, value, want)
        return tuple(kind(one) for one in value)

    def strings(self, key: str) -> dict[str, str]:
        want = "a table of strings"
        value = self.take(key, want)
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise self.malformed(key, value, want)
        return dict(value)

    def table(self, key: str, want: str = "a table") -> Fields:
        value = self.take(key, want)
        if not isinstance(value, dict):
            raise self.malformed(key, value, want)
        return Fields(self._place, value, self._error, f"{self._prefix}{key}.")

    def tables(self, key: str, want: str = "a list of tables") -> tuple[Fields, ...]:
        value = self.take(key, want)
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self.malformed(key, value, want)
        return tuple(Fields(self._place, one, self._error, f"{self._prefix}{key}[{index}].") for index, one in enumerate(value))

    def rest(self) -> dict[str, Any]:
        """Every field of the table; for tables whose keys belong to somebody else (a model's config.json)."""
        self._known |= set(self._table)
        return dict(self._table)

    def finish(self) -> None:
        """Refuse fields that no getter asked for."""
        unknown = sorted(set(self._table) - self._known)
        if unknown:
            raise self._error(f"{self._place}: unknown field {self._prefix + unknown[0]!r}. {nearest(unknown[0], self._known)}")
