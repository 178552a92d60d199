"""Frozen dataclasses to JSON values and back, strictly: a missing, unknown or malformed field is an error that names it."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import EvidenceError

__all__ = ["canonical", "decode", "encode", "parse", "pretty"]

T = TypeVar("T")

# JSON has no word for these, and a metric that a script printed as NaN must not turn into something else.
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode(value: Any) -> Any:  # noqa: PLR0911  one return a kind of value
    """Dataclasses become objects, tuples lists, enums their value, paths strings, and NaN the string "nan"."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(encode(key)): encode(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [encode(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return next(name for name, one in _NOT_FINITE.items() if one == value or (name == "nan" and math.isnan(value)))
    return value


def canonical(value: Any) -> str:
    """One text for one content (sorted keys, no spaces), the input of digests."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def pretty(value: Any) -> str:
    """Text for a file that people read too."""
    return json.dumps(encode(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def parse(text: str, where: str) -> Any:
    """JSON text to values. Raises EvidenceError that says where."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise EvidenceError(f"{where} is not JSON ({error}). The file is damaged or is something else.") from error


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def decode(kind: type[T], data: Any, where: str) -> T:
    """The dataclass `kind` from JSON values. Raises EvidenceError naming the field, e.g. "plan.json: plan.alpha"."""
    if not isinstance(data, dict):
        raise EvidenceError(f"{where}: expected an object, found {type(data).__name__}")
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    missing = [name for name in names if name not in data]
    unknown = [name for name in data if name not in names]
    if missing:
        raise EvidenceError(f"{where}: missing field {', '.join(missing)}")
    if unknown:
        raise EvidenceError(f"{where}: unknown field {', '.join(map(str, unknown))}")
    hints = _hints(typing.cast("Any", kind))
    return kind(**{name: _value(hints[name], data[name], f"{where}.{name}") for name in names})


def _alternative(kinds: list[Any], data: Any, where: str) -> Any:
    """Of several dataclasses the one that has most of the value's fields, so that a wrong field is named as one of it."""
    if len(kinds) == 1:
        return kinds[0]
    if not isinstance(data, dict):
        raise EvidenceError(f"{where}: expected an object, found {type(data).__name__}")
    return max(kinds, key=lambda kind: len({field.name for field in dataclasses.fields(kind)} & data.keys()))


def _value(kind: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is types.UnionType or origin is typing.Union:
        if data is None and type(None) in arguments:
            return None
        return _value(_alternative([one for one in arguments if one is not type(None)], data, where), data, where)
    if origin is tuple:
        if not isinstance(data, list):
            raise EvidenceError(f"{where}: expected a list, found {type(data).__name__}")
        return tuple(_value(arguments[0], one, f"{where}[{index}]") for index, one in enumerate(data))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise EvidenceError(f"{where}: expected an object, found {type(data).__name__}")
        return {_value(arguments[0], key, where): _value(arguments[1], one, f"{where}.{key}") for key, one in data.items()}
    if dataclasses.is_dataclass(kind):
        return decode(typing.cast("type[Any]", kind), data, where)
    return _plain(kind, data, where)


def _plain(kind: Any, data: Any, where: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError as error:
            raise EvidenceError(f"{where}: {data!r} is none of {', '.join(str(one.value) for one in kind)}") from error
    if kind is float:
        if isinstance(data, str) and data in _NOT_FINITE:
            return _NOT_FINITE[data]
        if isinstance(data, int | float) and not isinstance(data, bool):
            return float(data)
    elif isinstance(data, kind) and (kind is bool or not isinstance(data, bool)):
        return data
    raise EvidenceError(f"{where}: expected {kind.__name__}, found {data!r}")
