"""Typed reading of one TOML table; a missing field, a malformed one and an unknown one give different messages."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import WorkloadError
from harness.names import nearest

__all__ = ["Fields", "read_toml"]

E = TypeVar("E", bound=StrEnum)


def read_toml(path: Path) -> dict[str, Any]:
    """The parsed file; raises WorkloadError with the line when it is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path} is not valid TOML: {error}") from error


class Fields:
    """One table of a file. Each getter marks its field as known; `finish` refuses what is left."""

    def __init__(self, path: Path, table: Mapping[str, Any], prefix: str = "") -> None:
        self._path = path
        self._table = table
        self._prefix = prefix
        self._known: set[str] = set()

    def _name(self, key: str) -> str:
        return f"{self._prefix}{key}"

    def missing(self, key: str, want: str) -> WorkloadError:
        return WorkloadError(f"{self._path}: field {self._name(key)!r} is missing; it must be {want}")

    def malformed(self, key: str, value: object, want: str) -> WorkloadError:
        return WorkloadError(f"{self._path}: field {self._name(key)!r} is malformed: got {value!r}, it must be {want}")

    def take(self, key: str, want: str) -> Any:
        """The raw value of a field that must be there."""
        self._known.add(key)
        if key not in self._table:
            raise self.missing(key, want)
        return self._table[key]

    def has(self, key: str) -> bool:
        self._known.add(key)
        return key in self._table

    def schema(self, supported: int) -> None:
        """Refuse a file of another schema version before its other fields are looked at."""
        value = self.take("schema", f"{supported}")
        if value != supported or isinstance(value, bool):
            raise WorkloadError(
                f"{self._path}: field 'schema' is {value!r}, this checkout reads {supported}; update the file or the checkout"
            )

    def text(self, key: str) -> str:
        want = "a non-empty string"
        value = self.take(key, want)
        if not isinstance(value, str) or not value.strip():
            raise self.malformed(key, value, want)
        return value.strip()

    def integer(self, key: str, *, least: int) -> int:
        want = f"a whole number of at least {least}"
        value = self.take(key, want)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.malformed(key, value, want)
        return value

    def seconds(self, key: str) -> float:
        want = "a number of seconds above 0"
        value = self.take(key, want)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.malformed(key, value, want)
        return float(value)

    def texts(self, key: str) -> tuple[str, ...]:
        want = "a list of strings"
        value = self.take(key, want)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.malformed(key, value, want)
        return tuple(value)

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

    def table(self, key: str) -> Fields:
        want = "a table"
        value = self.take(key, want)
        if not isinstance(value, dict):
            raise self.malformed(key, value, want)
        return Fields(self._path, value, f"{self._name(key)}.")

    def tables(self, key: str) -> tuple[Fields, ...]:
        want = "a list of tables"
        value = self.take(key, want)
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self.malformed(key, value, want)
        return tuple(Fields(self._path, one, f"{self._name(key)}[{index}].") for index, one in enumerate(value))

    def rest(self, known: Iterable[str] = ()) -> dict[str, Any]:
        """Every field of the table; for tables whose keys belong to somebody else (a model's config.json)."""
        self._known |= set(self._table) | set(known)
        return dict(self._table)

    def finish(self) -> None:
        """Refuse fields that no getter asked for."""
        unknown = sorted(set(self._table) - self._known)
        if unknown:
            raise WorkloadError(f"{self._path}: unknown field {self._name(unknown[0])!r}. {nearest(unknown[0], self._known)}")
