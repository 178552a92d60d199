"""From an SQLite export of Nsight Systems to the table, in seconds for a gigabyte: rows stream into small arrays.

The phase of a kernel is that of the step range around its *launch* on the launching thread. For a kernel replayed from a CUDA
graph that is cudaGraphLaunch, whose correlation id all of its kernels carry, so it does not matter where the graph was
captured. Launches are matched by process and correlation id: the id alone is not unique across processes.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.profiles.events import Events, Names, profile_from, unattributed_phases
from harness.profiles.model import Profile, Recorder
from harness.profiles.nsys_schema import COPIES, KERNELS, LAUNCHES, RANGES, SETS, STRINGS, Export, damaged, open_export
from harness.profiles.phases import StepRange, phase_of, timelines
from harness.vocabulary import Phase

__all__ = ["read_export"]

# Rows fetched at once: 8 columns of 8 bytes are 16 MB, whatever the size of the file.
CHUNK = 256 * 1024
# globalTid is pid << 24 | tid (with the machine above); without the tid it is the globalPid of kernels.
_THREAD_BITS = 0xFFFFFF
_PUSH_POP, _START_END = 59, 60
# ENUM_CUDA_MEMCPY_OPER of the export.
_COPY_KINDS = {
    0: "unknown",
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "unified HtoD",
    12: "unified DtoH",
    13: "unified DtoD",
}


@dataclass(frozen=True, slots=True)
class _Rows:
    """Events of one table before their launch is known."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    device: NDArray[np.int32]
    name: NDArray[np.int32]
    # Process in the high bits, correlation id in the low 32; -1 where the row has none.
    launch: NDArray[np.int64]


def read_export(path: Path, *, label: str | None = None) -> Profile:
    """The table of one export. Raises ProfileError for what open_export refuses, and for a damaged page met on the way."""
    export = open_export(path)
    with closing(export.connection):
        try:
            return _read(export, label or path.stem)
        except sqlite3.DatabaseError as error:
            raise damaged(path, error) from error


def _read(export: Export, label: str) -> Profile:
    names, processes = Names(), Processes()
    tables = [_kernels(export, names, processes)]
    copies = [_copies(export, names, processes), _sets(export, names, processes)]
    kernels = tables[0].start.size
    tables += [one for one in copies if one is not None]
    joined = _Rows(
        *(np.concatenate([getattr(one, field) for one in tables]) for field in ("start", "end", "device", "name", "launch"))
    )
    steps, ranges = _steps(export)
    phase, between, orphans = _attribute(export, joined.launch, processes, steps)
    is_copy = np.zeros(joined.start.size, dtype=np.bool_)
    is_copy[kernels:] = True
    events = Events(
        start=joined.start,
        end=joined.end,
        device=joined.device,
        name=joined.name,
        is_copy=is_copy,
        phase=phase,
        between=between,
    )
    return profile_from(
        events,
        names.names,
        label=label,
        recorder=Recorder.NSYS,
        tool=export.tool,
        steps=Counter(step.phase for step in steps),
        notes=_notes(export, joined, processes, steps=len(steps), ranges=ranges, orphans=orphans),
    )


class Processes:
    """Small numbers for globalPid, so that process and correlation id fit in one integer."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def keys(self, process: NDArray[np.int64], correlation: NDArray[np.int64]) -> NDArray[np.int64]:
        """-1 where there is no correlation id."""
        result = np.full(correlation.size, -1, dtype=np.int64)
        for one in np.unique(process):
            number = self._known.setdefault(int(one), len(self._known))
            own = (process == one) & (correlation >= 0)
            result[own] = (number << 32) | (correlation[own] & 0xFFFFFFFF)
        return result


def _chunks(export: Export, sql: str, columns: int) -> Iterator[NDArray[np.int64]]:
    """Arrays of shape (rows, columns). NULLs were turned into numbers by the SQL."""
    dtype = np.dtype([(f"c{index}", np.int64) for index in range(columns)])
    with closing(export.connection.execute(sql)) as cursor:
        while True:
            chunk = np.fromiter(itertools.islice(cursor, CHUNK), dtype=dtype)
            if not chunk.size:
                return
            yield chunk.view(np.int64).reshape(-1, columns)


def _load(export: Export, table: str, name_sql: str, processes: Processes) -> tuple[_Rows, NDArray[np.int64]]:
    """The rows, with `name` still 0, and the raw name column."""
    correlation = export.column(table, "correlationId", "-1")
    process = export.column(table, "globalPid", "0")
    sql = f'SELECT start, "end", deviceId, {process}, {correlation}, {name_sql} FROM "{table}"'  # noqa: S608
    parts: list[tuple[NDArray[np.int64], ...]] = []
    for chunk in _chunks(export, sql, 6):
        launch = processes.keys(chunk[:, 3], chunk[:, 4])
        parts.append(
            (chunk[:, 0].copy(), chunk[:, 1].copy(), chunk[:, 2].astype(np.int32), launch, chunk[:, 5].astype(np.int32))
        )
    if not parts:
        empty = np.empty(0, dtype=np.int64)
        parts = [(empty, empty, empty.astype(np.int32), empty, empty.astype(np.int32))]
    start, end, device, launch, raw = (np.concatenate([part[index] for part in parts]) for index in range(5))
    return _Rows(start=start, end=end, device=device, name=np.zeros(start.size, dtype=np.int32), launch=launch), raw


def _kernels(export: Export, names: Names, processes: Processes) -> _Rows:
    # demangledName has the template arguments that categories are read from; the oldest files have shortName alone.
    source = next((one for one in ("demangledName", "shortName") if one in export.columns[KERNELS]), None)
    rows, raw = _load(export, KERNELS, f'coalesce("{source}", -1)' if source else "-1", processes)
    used = np.unique(raw)
    texts = _strings(export, used)
    mapping = np.array([names.of(texts.get(int(one), "")) for one in used], dtype=np.int32)
    return _Rows(rows.start, rows.end, rows.device, mapping[np.searchsorted(used, raw)], rows.launch)


def _strings(export: Export, ids: NDArray[np.int64]) -> dict[int, str]:
    if not export.has(STRINGS):
        return {}
    found: dict[int, str] = {}
    for start in range(0, ids.size, 500):
        some = [int(one) for one in ids[start : start + 500]]
        marks = ",".join("?" * len(some))
        found.update(export.connection.execute(f"SELECT id, value FROM {STRINGS} WHERE id IN ({marks})", some))  # noqa: S608
    return found


def _copies(export: Export, names: Names, processes: Processes) -> _Rows | None:
    if not export.has(COPIES):
        return None
    rows, raw = _load(export, COPIES, export.column(COPIES, "copyKind", "0"), processes)
    used = np.unique(raw)
    words = [f"Memcpy {_COPY_KINDS.get(int(one), f'kind {one}')}" for one in used]
    mapping = np.array([names.exactly(word, word) for word in words], dtype=np.int32)
    return _Rows(rows.start, rows.end, rows.device, mapping[np.searchsorted(used, raw)], rows.launch) if used.size else None


def _sets(export: Export, names: Names, processes: Processes) -> _Rows | None:
    if not export.has(SETS):
        return None
    rows, _ = _load(export, SETS, "0", processes)
    name = np.full(rows.start.size, names.exactly("Memset", "Memset"), dtype=np.int32)
    return _Rows(rows.start, rows.end, rows.device, name, rows.launch) if rows.start.size else None


def _steps(export: Export) -> tuple[list[StepRange], int]:
    """Ranges that mark a step, and how many ranges there are. A range still open at the end lasts to the end of the file."""
    if not export.has(RANGES):
        return [], 0
    text = '"text"' if "text" in export.columns[RANGES] else "NULL"
    by_id = "textId" in export.columns[RANGES] and export.has(STRINGS)
    value = f"coalesce({text}, s.value)" if by_id else text
    join = f"LEFT JOIN {STRINGS} s ON s.id = n.textId" if by_id else ""
    sql = (
        f'SELECT n.start, n."end", n.globalTid, {value} FROM {RANGES} n {join} '  # noqa: S608
        f"WHERE n.eventType IN ({_PUSH_POP}, {_START_END})"
    )
    known: dict[str, Phase | None] = {}
    steps: list[StepRange] = []
    ranges = 0
    for start, end, thread, words in export.connection.execute(sql):
        ranges += 1
        if words is None or thread is None:
            continue
        if words not in known:
            known[words] = phase_of(words)
        phase = known[words]
        if phase is not None:
            last = np.iinfo(np.int64).max if end is None else int(end)
            steps.append(StepRange(thread=int(thread), start=int(start), end=last, phase=phase))
    return steps, ranges


def _attribute(
    export: Export, wanted: NDArray[np.int64], processes: Processes, steps: list[StepRange]
) -> tuple[NDArray[np.int8], NDArray[np.bool_], int]:
    """Phase and between of each event, and how many events have no launch in the file."""
    phase, between = unattributed_phases(wanted.size)
    if not export.has(LAUNCHES):
        return phase, between, wanted.size
    keys, starts, threads, table = _launches(export, processes, np.unique(wanted[wanted >= 0]))
    if not keys.size:
        return phase, between, wanted.size
    at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    found = (keys[at] == wanted) & (wanted >= 0)
    thread_of = np.where(found, threads[at], -1)
    for thread, line in timelines(steps).items():
        number = table.get(thread)
        if number is not None:
            own = np.flatnonzero(thread_of == number)
            phase[own], between[own] = line.at(starts[at[own]])
    return phase, between, int((~found).sum())


def _launches(
    export: Export, processes: Processes, wanted: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], dict[int, int]]:
    """Sorted keys of the API calls that launched something, their start, and their thread as a number of the last result."""
    table: dict[int, int] = {}
    parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]] = []
    sql = f"SELECT start, coalesce(globalTid, -1), coalesce(correlationId, -1) FROM {LAUNCHES}"  # noqa: S608
    for chunk in _chunks(export, sql, 3):
        process = (
            chunk[:, 1] & ~_THREAD_BITS if "globalPid" in export.columns[KERNELS] else np.zeros(len(chunk), dtype=np.int64)
        )
        keys = processes.keys(process, chunk[:, 2])
        # Most calls launch nothing (queries, events): they are dropped here, so that memory follows the launches.
        at = np.minimum(np.searchsorted(wanted, keys), max(wanted.size - 1, 0))
        kept = np.flatnonzero(wanted[at] == keys) if wanted.size else np.empty(0, dtype=np.int64)
        own, inverse = np.unique(chunk[kept, 1], return_inverse=True)
        numbers = np.array([table.setdefault(int(one), len(table)) for one in own], dtype=np.int32)
        parts.append((keys[kept], chunk[kept, 0], numbers[inverse]))
    if not parts:
        empty = np.empty(0, dtype=np.int64)
        return empty, empty, empty.astype(np.int32), table
    keys, starts, threads = (np.concatenate([part[index] for part in parts]) for index in range(3))
    order = np.argsort(keys, kind="stable")
    return keys[order], starts[order], threads[order], table


def _notes(export: Export, rows: _Rows, processes: Processes, *, steps: int, ranges: int, orphans: int) -> list[str]:
    notes = [f"nsys reported: {one}" for one in export.diagnostics]
    if not ranges:
        notes.append("no NVTX ranges were recorded, so no kernel has a phase")
    elif not steps:
        notes.append(f"none of the {ranges} NVTX ranges marks a step that upkernel knows, so no kernel has a phase")
    if orphans:
        notes.append(f"{orphans} of {rows.start.size} events have no launch in the file (cut off at its edges): unattributed")
    if "graphNodeId" not in export.columns[KERNELS]:
        notes.append(
            "this schema does not tell kernels of CUDA graphs from others; that graphs were traced by node cannot be checked"
        )
    elif export.graph_mode == "graph":
        notes.append("recorded with --cuda-graph-trace=graph, but no graph was launched, so nothing is hidden")
    if "globalPid" not in export.columns[KERNELS]:
        notes.append("this schema has no process ids for kernels: launches were matched as if there were one process")
    if len(processes) > 1:
        notes.append(f"kernels or launches of {len(processes)} processes")
    return notes
