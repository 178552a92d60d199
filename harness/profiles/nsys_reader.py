"""From an SQLite export of Nsight Systems to the table, in seconds for a gigabyte: rows stream into small arrays.

The phase of a kernel is that of the step range around its *launch* on the launching thread. For a kernel replayed from a CUDA
graph that is cudaGraphLaunch, whose correlation id all of its kernels carry, so it does not matter where the graph was
captured. Launches are matched by process and correlation id: the id alone is not unique across processes.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import ProfileError
from harness.profiles.events import Events, Names, profile_from, unattributed_phases
from harness.profiles.model import Profile, Recorder
from harness.profiles.nsys_rows import Rows, joined, load_columns, load_rows
from harness.profiles.nsys_schema import COPIES, KERNELS, LAUNCHES, RANGES, SETS, STRINGS, Export, damaged, open_export
from harness.profiles.phases import StepRange, phase_of, timelines

__all__ = ["read_export"]

# globalTid is machine << 48 | pid << 24 | tid, and globalPid the same without the tid: both give the pid.
_PID = "(({0} >> 24) & 0xFFFFFF)"
_PUSH_POP, _START_END = 59, 60
# Words in names of API calls that put no work on a stream.
_IDLE_CALLS = ("Event", "Get", "Query", "Synchronize", "IsCapturing", "Malloc", "Free", "Create", "Destroy", "Instantiate")
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
class _Launches:
    """API calls that launched something, sorted by key; `thread` counts in `threads`, which maps globalTid to it."""

    keys: NDArray[np.int64]
    start: NDArray[np.int64]
    thread: NDArray[np.int32]
    threads: dict[int, int]


def read_export(path: Path, *, label: str | None = None) -> Profile:
    """The table of one export. Raises ProfileError for what open_export refuses, and for a damaged page met on the way."""
    export = open_export(path)
    with closing(export.connection):
        try:
            return _read(export, label or path.stem)
        except sqlite3.DatabaseError as error:
            raise damaged(path, error) from error


def _read(export: Export, label: str) -> Profile:
    names = Names()
    tables = [_kernels(export, names)]
    kernels = tables[0].start.size
    tables += [one for one in (_copies(export, names), _sets(export, names)) if one is not None]
    rows = joined(tables)
    tables.clear()
    graphs, hidden = _graph_launches(export, rows)
    if graphs and hidden == graphs:
        raise ProfileError(
            f"{export.path} holds {graphs} launches of CUDA graphs and no kernel of any of them, so a table would leave out "
            "what they ran. Record with --cuda-graph-trace=node (`nox -s profile` does) and a current nsys"
        )
    steps, ranges = _steps(export)
    phase, between, orphans = _attribute(export, rows, steps)
    is_copy = np.zeros(rows.start.size, dtype=np.bool_)
    is_copy[kernels:] = True
    events = Events(
        start=rows.start,
        end=rows.end,
        device=rows.device,
        name=rows.name,
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
        notes=_notes(export, rows, steps=len(steps), ranges=ranges, orphans=orphans, graphs=(graphs, hidden)),
    )


def _key(export: Export, table: str, process: str) -> str:
    """SQL for the key of a launch. What makes a reader slow is numbers that cross into Python, so two columns cross as one."""
    if "correlationId" not in export.columns[table]:
        return "-1"
    pid = _PID.format(f'coalesce("{process}", 0)') if _has_processes(export) else "0"
    return f"coalesce(({pid} << 32) | correlationId, -1)"


def _has_processes(export: Export) -> bool:
    """Whether kernels say which process they are of; else launches are matched by correlation id alone."""
    return "globalPid" in export.columns[KERNELS]


def _load(export: Export, table: str, name_sql: str) -> tuple[Rows, NDArray[np.int32]]:
    """The rows, with `name` still 0, and the raw name column."""
    key = _key(export, table, "globalPid")
    columns = f'start, "end", (deviceId << 32) | {name_sql}, {key}'
    return load_rows(export, table, columns)


def _named(rows: Rows, raw: NDArray[np.int32], number_of: Callable[[NDArray[np.int32]], Sequence[int]]) -> Rows:
    """The rows with `name` set: `number_of` gives the numbers in Names for the distinct raw values."""
    if not raw.size:
        return dataclasses.replace(rows, name=raw)
    # Ids of strings and kinds of copies are small: a table is quicker than a search for each row.
    used = np.flatnonzero(np.bincount(raw)).astype(np.int32)
    table = np.zeros(int(used[-1]) + 1, dtype=np.int32)
    table[used] = number_of(used)
    return dataclasses.replace(rows, name=table[raw])


def _kernels(export: Export, names: Names) -> Rows:
    # demangledName has the template arguments that categories are read from; the oldest files have shortName alone.
    source = next((one for one in ("demangledName", "shortName") if one in export.columns[KERNELS]), None)
    rows, raw = _load(export, KERNELS, f'coalesce("{source}", 0)' if source else "0")

    def number_of(used: NDArray[np.int32]) -> list[int]:
        texts = _strings(export, used) if source else {}
        return [names.of(texts.get(int(one), "")) for one in used]

    return _named(rows, raw, number_of)


def _strings(export: Export, ids: NDArray[np.int32]) -> dict[int, str]:
    if not export.has(STRINGS):
        return {}
    found: dict[int, str] = {}
    for start in range(0, ids.size, 500):
        some = [int(one) for one in ids[start : start + 500]]
        marks = ",".join("?" * len(some))
        found.update(export.connection.execute(f"SELECT id, value FROM {STRINGS} WHERE id IN ({marks})", some))  # noqa: S608
    return found


def _copies(export: Export, names: Names) -> Rows | None:
    if not export.count(COPIES):
        return None
    kind = 'coalesce("copyKind", 0)' if "copyKind" in export.columns[COPIES] else "0"
    rows, raw = _load(export, COPIES, kind)

    def number_of(used: NDArray[np.int32]) -> list[int]:
        words = [f"Memcpy {_COPY_KINDS.get(int(one), f'kind {one}')}" for one in used]
        return [names.exactly(word, word) for word in words]

    return _named(rows, raw, number_of)


def _sets(export: Export, names: Names) -> Rows | None:
    if not export.count(SETS):
        return None
    rows, raw = _load(export, SETS, "0")
    return _named(rows, raw, lambda used: [names.exactly("Memset", "Memset") for _ in used])


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
    steps: list[StepRange] = []
    ranges = 0
    for start, end, thread, words in export.connection.execute(sql):
        ranges += 1
        phase = None if words is None or thread is None else phase_of(words)
        if phase is not None:
            last = np.iinfo(np.int64).max if end is None else int(end)
            steps.append(StepRange(thread=int(thread), start=int(start), end=last, phase=phase))
    return steps, ranges


def _attribute(export: Export, rows: Rows, steps: list[StepRange]) -> tuple[NDArray[np.int8], NDArray[np.bool_], int]:
    """Phase and between of each event, and how many events have no launch in the file."""
    count = rows.start.size
    phase, between = unattributed_phases(rows.keys.size)
    launches = _launches(export, np.unique(rows.keys[rows.keys >= 0])) if export.has(LAUNCHES) else None
    if launches is None or not launches.keys.size:
        return *unattributed_phases(count), count
    at = np.minimum(np.searchsorted(launches.keys, rows.keys), launches.keys.size - 1)
    found = (launches.keys[at] == rows.keys) & (rows.keys >= 0)
    thread = np.where(found, launches.thread[at], -1)
    for one, line in timelines(steps).items():
        number = launches.threads.get(one)
        if number is not None:
            own = np.flatnonzero(thread == number)
            phase[own], between[own] = line.at(launches.start[at[own]])
    return np.repeat(phase, rows.lengths), np.repeat(between, rows.lengths), int(rows.lengths[~found].sum())


def _launching(export: Export) -> str:
    """SQL that leaves out calls which never launch anything: they are the most, and each costs as much to read as a launch."""
    if "nameId" not in export.columns[LAUNCHES] or not export.has(STRINGS):
        return "TRUE"
    idle = " OR ".join(f"value GLOB '*{word}*'" for word in _IDLE_CALLS)
    return f"nameId NOT IN (SELECT id FROM {STRINGS} WHERE (value GLOB 'cu[A-Z]*' OR value GLOB 'cuda*') AND ({idle}))"  # noqa: S608


def _launches(export: Export, wanted: NDArray[np.int64]) -> _Launches:
    """The calls whose key is among `wanted` (sorted)."""
    threads: dict[int, int] = {}
    none = np.empty(0, dtype=np.int64)
    parts: list[tuple[NDArray[Any], ...]] = [(none, none, none.astype(np.int32))]
    key = _key(export, LAUNCHES, "globalTid")
    columns = f"start, coalesce(globalTid, -1), {key}"
    for chunk in load_columns(export, LAUNCHES, columns, 3, _launching(export)) if wanted.size else ():
        keys = chunk[:, 2]
        kept = np.flatnonzero(wanted[np.minimum(np.searchsorted(wanted, keys), wanted.size - 1)] == keys)
        own, inverse = np.unique(chunk[kept, 1], return_inverse=True)
        numbers = np.array([threads.setdefault(int(one), len(threads)) for one in own], dtype=np.int32)
        parts.append((keys[kept], chunk[kept, 0], numbers[inverse]))
    keys, start, thread = (np.concatenate([part[index] for part in parts]) for index in range(3))
    # Stable: of the calls that share a key (a runtime call and the driver call in it), the first in the file counts.
    order = np.argsort(keys, kind="stable")
    return _Launches(keys[order], start[order], thread[order], threads)


def _graph_launches(export: Export, rows: Rows) -> tuple[int, int]:
    """How many graph launches the file holds, and how many of them have no kernel or copy in it."""
    if not export.has(LAUNCHES) or not export.has(STRINGS) or "nameId" not in export.columns[LAUNCHES]:
        return 0, 0
    condition = f"nameId IN (SELECT id FROM {STRINGS} WHERE value GLOB 'cu*GraphLaunch*')"  # noqa: S608 - our own names
    columns = f"{_key(export, LAUNCHES, 'globalTid')}"
    keys = np.concatenate([part[:, 0] for part in load_columns(export, LAUNCHES, columns, 1, condition)])
    keys = np.unique(keys[keys >= 0])
    return keys.size, keys.size - int(np.isin(keys, rows.keys).sum())


def _notes(export: Export, rows: Rows, *, steps: int, ranges: int, orphans: int, graphs: tuple[int, int]) -> list[str]:
    notes = [f"nsys reported: {one}" for one in export.diagnostics]
    if not ranges:
        notes.append("no NVTX ranges were recorded, so no kernel has a phase")
    elif not steps:
        notes.append(f"none of the {ranges} NVTX ranges marks a step that upkernel knows, so no kernel has a phase")
    if orphans:
        notes.append(f"{orphans} of {rows.start.size} events have no launch in the file (cut off at its edges): unattributed")
    if graphs[1]:
        notes.append(f"{graphs[1]} of {graphs[0]} launches of CUDA graphs have no kernel in the file (cut off at its end)")
    if "graphNodeId" not in export.columns[KERNELS]:
        notes.append(
            "this schema does not tell kernels of CUDA graphs from others; that graphs were traced by node cannot be checked"
        )
    elif export.graph_mode == "graph":
        notes.append("recorded with --cuda-graph-trace=graph, but no graph was launched, so nothing is hidden")
    processes = np.unique(rows.keys[rows.keys >= 0] >> 32)
    if not _has_processes(export):
        notes.append("this schema has no process ids for kernels: launches were matched as if there were one process")
    elif processes.size > 1:
        notes.append(f"kernels of {processes.size} processes")
    return notes
