"""Rows of a large table as arrays. What is slow is each number's way into Python, so columns are packed and ranges shared out.

12 million kernels (1.1 GB) are 48 million numbers, 1 to 2 us a row on one core. A table above PARALLEL_ROWS is therefore read
by several processes, each a range of row ids.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import ProfileError
from harness.profiles.nsys_schema import Export, connect

__all__ = ["PARALLEL_ROWS", "Rows", "joined", "load_columns", "load_rows"]

# Rows fetched at once: 4 columns of 8 bytes are 8 MB, whatever the size of the file.
CHUNK = 256 * 1024
# Starting a process costs about as much as reading 300,000 rows.
PARALLEL_ROWS = 1_500_000
MOST_PROCESSES = 8
_LOW = 0xFFFFFFFF
Arrays = tuple[NDArray[Any], ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """n events of one table, before anything is known of their launches.

    Events of one launch (a replayed graph has hundreds) mostly stand together, so launches are kept as runs: run i is
    `lengths[i]` events with the launch `keys[i]`: process id << 32 | correlation id, or -1 for none.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    device: NDArray[np.int32]
    name: NDArray[np.int32]
    keys: NDArray[np.int64]
    lengths: NDArray[np.int64]


def joined(tables: Sequence[Rows]) -> Rows:
    """One after the other."""
    if len(tables) == 1:
        return tables[0]
    return Rows(*(np.concatenate([getattr(one, field.name) for one in tables]) for field in dataclasses.fields(Rows)))


def chunks(connection: sqlite3.Connection, sql: str, columns: int) -> Iterator[NDArray[np.int64]]:
    """Arrays of shape (rows, columns). The SQL must turn NULLs into numbers."""
    dtype = np.dtype([(f"c{index}", np.int64) for index in range(columns)])
    with closing(connection.execute(sql)) as cursor:
        while True:
            chunk = np.fromiter(itertools.islice(cursor, CHUNK), dtype=dtype)
            if not chunk.size:
                return
            yield chunk.view(np.int64).reshape(-1, columns)


def load_rows(export: Export, table: str, columns: str) -> tuple[Rows, NDArray[np.int32]]:
    """The rows, with `name` empty, and the raw name column. `columns` is SQL for start, end, device << 32 | name, key.

    Raises ProfileError when a reading process dies, and sqlite3.DatabaseError for a damaged page.
    """
    parts = over_ranges(export, table, columns, "TRUE", _part)
    start, end, device, raw, keys, lengths = (np.concatenate([part[index] for part in parts]) for index in range(6))
    return Rows(start, end, device, np.zeros(0, dtype=np.int32), keys, lengths), raw


def load_columns(export: Export, table: str, columns: str, count: int, condition: str) -> Iterator[NDArray[np.int64]]:
    """`count` columns of the rows that meet a condition, as arrays of shape (rows, count). Raises as load_rows."""
    for (part,) in over_ranges(export, table, columns, condition, partial(_columns, count=count)):
        yield part


def over_ranges(
    export: Export, table: str, columns: str, condition: str, part: Callable[[sqlite3.Connection, str], Arrays]
) -> list[Arrays]:
    """What `part` makes of each range of the table's rows, in order; `part` runs in other processes when the table is large."""
    sql = f'SELECT {columns} FROM "{table}" WHERE {condition}'  # noqa: S608 - our own names
    first, last = export.connection.execute(f'SELECT min(rowid), max(rowid) FROM "{table}"').fetchone()  # noqa: S608
    rows = 0 if first is None else last - first + 1
    processes = min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
    if rows <= PARALLEL_ROWS or processes < 2:
        return [part(export.connection, sql)]
    edges = np.linspace(first, last + 1, processes + 1).astype(np.int64)
    ranges = [f"{sql} AND rowid >= {low} AND rowid < {high}" for low, high in itertools.pairwise(edges)]
    # Spawned, not forked: NumPy has threads.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            return list(pool.map(_elsewhere, itertools.repeat(export.path), ranges, itertools.repeat(part)))
        except BrokenProcessPool as error:
            raise ProfileError(f"a process that read {export.path} died, most likely for want of memory: {error}") from error


def _elsewhere(path: Path, sql: str, part: Callable[[sqlite3.Connection, str], Arrays]) -> Arrays:
    with closing(connect(path)) as connection:
        return part(connection, sql)


def _columns(connection: sqlite3.Connection, sql: str, *, count: int) -> Arrays:
    parts = list(chunks(connection, sql, count))
    return (np.concatenate(parts) if parts else np.empty((0, count), dtype=np.int64),)


def _part(connection: sqlite3.Connection, sql: str) -> Arrays:
    """start, end, device, raw name, keys, lengths of one range."""
    none = np.empty(0, dtype=np.int64)
    parts: list[Arrays] = [(none, none, none.astype(np.int32), none.astype(np.int32), none, none)]
    for chunk in chunks(connection, sql, 4):
        launch = chunk[:, 3]
        begins = np.flatnonzero(np.concatenate([[True], launch[1:] != launch[:-1]]))
        parts.append(
            (
                chunk[:, 0].copy(),
                chunk[:, 1].copy(),
                (chunk[:, 2] >> 32).astype(np.int32),
                (chunk[:, 2] & _LOW).astype(np.int32),
                launch[begins],
                np.diff(begins, append=launch.size),
            )
        )
    return tuple(np.concatenate([part[index] for part in parts]) for index in range(6))
