"""upstream/lock.toml: which commit each pin is, and which commit each series makes of it, per kind of source.

With it every machine can prove that it runs the same tree. A pin imported from its archive is another commit than the one in
upstream's git (it has no history), hence one hash per kind of source.
"""

from __future__ import annotations

import fcntl
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import Table

from harness.errors import PinError, SeriesError
from harness.files import write_atomically
from harness.pins.model import Pin
from harness.series.model import Series
from harness.vocabulary import Source

__all__ = ["Built", "Lock", "check_lock", "read_lock", "record"]

COMMIT = re.compile(r"[0-9a-f]{40}")
BASE = "base"
TIP = "tip"
HEADER = """\
# Written by `nox -s export`, and by `nox -s apply` with --update-lock; `nox -s check -- --apply` compares.
# base: the commit that a pin is. tip: the commit that a series makes of it. One hash for each kind of source.
"""


@dataclass(frozen=True, slots=True)
class Built:
    """What was made on this machine: the base of a pin, and where a series was applied, the series and its tip."""

    pin: Pin
    source: Source
    base: str
    series: Series | None = None
    tip: str | None = None


@dataclass(frozen=True, slots=True)
class Lock:
    """Full commit hashes: `bases` by (pin's name, source), `tips` by (series id, pin's version, source)."""

    bases: Mapping[tuple[str, Source], str]
    tips: Mapping[tuple[str, str, Source], str]


def read_lock(path: Path) -> Lock:
    """Nothing is locked where there is no file. Raises PinError, naming file and field, when it is malformed."""
    if not path.exists():
        return Lock({}, {})
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PinError(f"{path} is not valid TOML: {error}") from error
    unknown = sorted(set(document) - {BASE, TIP})
    if unknown:
        raise PinError(f"{path}: unknown table {unknown[0]!r}; it has {BASE!r} and {TIP!r}")
    bases = {
        (name, source): commit
        for name, table in _table(path, BASE, document.get(BASE, {})).items()
        for source, commit in _commits(path, f"{BASE}.{name}", table).items()
    }
    tips = {
        (series, version, source): commit
        for series, versions in _table(path, TIP, document.get(TIP, {})).items()
        for version, table in _table(path, f"{TIP}.{series}", versions).items()
        for source, commit in _commits(path, f"{TIP}.{series}.{version}", table).items()
    }
    return Lock(bases, tips)


def check_lock(path: Path, built: Built) -> bool:
    """Compare with the lock: True when base and tip are as locked, False when one of them is not locked yet.

    Raises PinError when the base and SeriesError when the tip is another commit than the locked one.
    """
    lock = read_lock(path)
    pin, source, series = built.pin, built.source, built.series
    base = lock.bases.get((pin.name, source))
    if base not in {None, built.base}:
        raise PinError(
            f"{pin.name} from {source} is commit {built.base}, but {path} has {base}: its source or the way it is imported "
            "has changed. If that was meant, run `nox -s apply` on one of its series with --update-lock"
        )
    if series is None:
        return base is not None
    tip = lock.tips.get((series.id, pin.version, source))
    if tip not in {None, built.tip}:
        raise SeriesError(
            f"{series.id} on {pin.name} from {source} gives commit {built.tip}, but {path} has {tip}: its patches (or those of "
            f"a series it is after) have changed. If that was meant, run `nox -s apply -- {series.id} --update-lock`"
        )
    return base is not None and tip is not None


def record(path: Path, built: Built) -> None:
    """Write what was made to the lock file; its comments stay.

    A new tip drops the locked tips of the series from other sources: they belong to patches that are no longer there.
    """
    with _alone(path.parent):
        read_lock(path)  # a malformed file is for a person to mend, not to write into
        document = tomlkit.parse(path.read_text(encoding="utf-8") if path.exists() else HEADER)
        before = tomlkit.dumps(document)
        _sub(document, BASE, built.pin.name)[built.source.value] = built.base
        if built.series is not None and built.tip is not None:
            table = _sub(document, TIP, built.series.id, built.pin.version)
            if table.get(built.source.value, built.tip) != built.tip:
                table.clear()
            table[built.source.value] = built.tip
        after = tomlkit.dumps(document)
        if after != before or not path.exists():
            write_atomically(path, after, PinError)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time in. The folder itself is locked, so that no lock file lies about in the repository."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _sub(document: tomlkit.TOMLDocument, *keys: str) -> Table:
    """The table at those keys, made where it is missing; all but the last are only named by it."""
    here: Any = document
    for number, key in enumerate(keys, start=1):
        if key not in here:
            here.add(key, tomlkit.table(is_super_table=number < len(keys)))
        here = here[key]
    table: Table = here
    return table


def _table(path: Path, name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PinError(f"{path}: {name!r} is malformed: got {value!r}, it must be a table")
    return value


def _commits(path: Path, name: str, value: object) -> dict[Source, str]:
    commits = {}
    for key, commit in _table(path, name, value).items():
        if key not in tuple(Source):
            raise PinError(f"{path}: unknown field '{name}.{key}'; it must be one of {', '.join(Source)}")
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            raise PinError(f"{path}: field '{name}.{key}' is malformed: got {commit!r}, it must be 40 hexadecimal digits")
        commits[Source(key)] = commit
    return commits
