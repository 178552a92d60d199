"""Make a small fixture of a real export: keeps what the readers read, drops what tells about the host.

    python tests/profiles/strip_export.py RECORDED.sqlite tests/profiles/fixtures/NAME.sqlite

Dropped: tables of the system and its environment, process streams, the command line, paths, user and host names, the GPU's
UUID and bus, and every string that no kept row names. Process ids are renumbered.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

KEPT = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUDA_GRAPH_NODE_EVENTS",
    "NVTX_EVENTS",
)
NAMES = {"demangledName", "shortName", "mangledName", "nameId", "textId"}
METADATA = {
    "META_DATA_EXPORT": "name IN ('EXPORT_PRODUCT_NAME', 'EXPORT_PRODUCT_VERSION', 'EXPORT_SCHEMA_VERSION')",
    "META_DATA_CAPTURE": "name LIKE '%CUDA_GRAPH_TRACE_OPTIONS:MODE'",
}
PROCESS = {"globalPid", "globalTid", "endGlobalTid"}


def strip(source: Path, target: Path) -> None:  # noqa: C901 - one pass over the tables
    target.unlink(missing_ok=True)
    old = sqlite3.connect(f"file:{source}?mode=ro", uri=True)
    new = sqlite3.connect(target)
    tables = dict(old.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
    used: set[int] = set()
    pids: dict[int, int] = {}
    for table in KEPT:
        if table not in tables:
            continue
        columns = [row[1] for row in old.execute(f'PRAGMA table_info("{table}")')]
        types = [row[2] for row in old.execute(f'PRAGMA table_info("{table}")')]
        new.execute(
            f'CREATE TABLE "{table}" ({", ".join(f"""{c!r} {t}""" for c, t in zip(columns, types, strict=True))})'.replace(
                "'", '"'
            )
        )
        for row in old.execute(f'SELECT * FROM "{table}"'):
            values = list(row)
            for index, column in enumerate(columns):
                if values[index] is None:
                    continue
                if column in NAMES:
                    used.add(values[index])
                elif column in PROCESS:
                    values[index] = _renumbered(values[index], pids)
            new.execute(f'INSERT INTO "{table}" VALUES ({",".join("?" * len(values))})', values)
    new.execute('CREATE TABLE "StringIds" ("id" INTEGER PRIMARY KEY, "value" TEXT)')
    for number, value in old.execute("SELECT id, value FROM StringIds"):
        if number in used:
            new.execute("INSERT INTO StringIds VALUES (?, ?)", (number, value))
    for table, condition in METADATA.items():
        new.execute(f'CREATE TABLE "{table}" ("name" TEXT, "value" TEXT)')
        for pair in old.execute(f"SELECT name, value FROM {table} WHERE {condition}"):
            new.execute(f'INSERT INTO "{table}" VALUES (?, ?)', pair)
    new.commit()
    new.execute("VACUUM")
    new.close()
    old.close()


def _renumbered(value: int, pids: dict[int, int]) -> int:
    """The same thread of process 1, 2, ...; thread ids become 1 for the main thread, 2 for others."""
    pid, tid = (value >> 24) & 0xFFFFFF, value & 0xFFFFFF
    number = pids.setdefault(pid, len(pids) + 1)
    return (number << 24) | (0 if tid == 0 else number if tid == pid else number + 100 + tid % 100)


if __name__ == "__main__":
    strip(Path(sys.argv[1]), Path(sys.argv[2]))
