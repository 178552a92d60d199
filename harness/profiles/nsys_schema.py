"""What an SQLite export of Nsight Systems holds: tables and columns come and go with version and run, so ask before reading.

Tables are written lazily (none for what did not happen) and columns were added over the years: graphNodeId is missing
before CUDA graphs were traced, textId in old ranges. Seen and tested: schemas 3.20.3 and 3.25.0.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ProfileError

__all__ = ["COPIES", "KERNELS", "LAUNCHES", "RANGES", "SETS", "STRINGS", "Export", "connect", "damaged", "open_export"]

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
LAUNCHES = "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RANGES = "NVTX_EVENTS"
STRINGS = "StringIds"
_NEEDED = {
    KERNELS: ("start", "end", "deviceId"),
    COPIES: ("start", "end", "deviceId"),
    SETS: ("start", "end", "deviceId"),
    LAUNCHES: ("start", "globalTid", "correlationId"),
    RANGES: ("start", "end", "eventType", "globalTid"),
    STRINGS: ("id", "value"),
}
_MAGIC = b"SQLite format 3\x00"


@dataclass(frozen=True, slots=True)
class Export:
    """An open export with what was asked of it up front. Close `connection` when done."""

    path: Path
    connection: sqlite3.Connection
    columns: dict[str, frozenset[str]]
    tool: str
    # "node", "graph", or "" where the export does not say.
    graph_mode: str
    diagnostics: tuple[str, ...]

    def has(self, table: str) -> bool:
        return table in self.columns

    def count(self, table: str) -> int:
        """Rows of a table; 0 for one that is not there."""
        if not self.has(table):
            return 0
        return int(self.connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0])  # noqa: S608 - our own names


def open_export(path: Path) -> Export:
    """Open read-only and check that it is whole, has kernels and was not recorded in graph mode.

    Raises ProfileError: not an export, truncated, no kernel rows, kernels hidden in graphs, columns missing.
    """
    _check_size(path)
    try:
        connection = connect(path)
    except sqlite3.Error as error:
        raise ProfileError(f"cannot open {path}: {error}") from error
    try:
        export = _inspect(path, connection)
        _refuse_graph_mode(export)
        _refuse_empty(export)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise damaged(path, error) from error
    except ProfileError:
        connection.close()
        raise
    return export


def connect(path: Path) -> sqlite3.Connection:
    """Read-only, and with no lock: nobody writes to an export while it is read."""
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)


def damaged(path: Path, error: sqlite3.Error) -> ProfileError:
    return ProfileError(f"{path} is damaged or not an export of Nsight Systems ({error}); export the report again")


def _check_size(path: Path) -> None:
    """SQLite reads a truncated file happily until it meets a missing page: compare the header's page count first."""
    try:
        with path.open("rb") as stream:
            header = stream.read(100)
        size = path.stat().st_size
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror or error}") from error
    if not header.startswith(_MAGIC) or len(header) < 100:
        raise ProfileError(f"{path} is no SQLite file ({size} bytes); give an export of nsys (nsys export -t sqlite)")
    page = int.from_bytes(header[16:18], "big")
    expected = (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    if size < expected:
        raise ProfileError(
            f"{path} is truncated: {size} bytes of {expected}. The copy or the export was cut off (a full disk?); export again"
        )


def _inspect(path: Path, connection: sqlite3.Connection) -> Export:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns: dict[str, frozenset[str]] = {}
    for table in tables:
        with closing(connection.execute(f'PRAGMA table_info("{table}")')) as cursor:
            columns[table] = frozenset(str(row[1]) for row in cursor)
    for table, wanted in _NEEDED.items():
        if table in columns:
            missing = [name for name in wanted if name not in columns[table]]
            if missing:
                raise ProfileError(
                    f"{path}: table {table} has no column {', '.join(missing)}, which every known schema has; "
                    "export the report with a current nsys"
                )
    exported = _pairs(connection, columns, "META_DATA_EXPORT")
    captured = _pairs(connection, columns, "META_DATA_CAPTURE")
    product = exported.get("EXPORT_PRODUCT_NAME", "Nsight Systems")
    version = exported.get("EXPORT_PRODUCT_VERSION", "of unknown version")
    schema = exported.get("EXPORT_SCHEMA_VERSION", "unknown")
    # 3.25 names it plainly, 3.20 per process: PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE.
    modes = {value.lower() for name, value in captured.items() if name.endswith("CUDA_GRAPH_TRACE_OPTIONS:MODE") and value}
    return Export(
        path=path,
        connection=connection,
        columns=columns,
        tool=f"{product} {version}, schema {schema}",
        graph_mode="graph" if "graph" in modes else "node" if modes else "",
        diagnostics=_diagnostics(connection, columns),
    )


def _pairs(connection: sqlite3.Connection, columns: dict[str, frozenset[str]], table: str) -> dict[str, str]:
    if not {"name", "value"} <= columns.get(table, frozenset()):
        return {}
    return {str(name): str(value) for name, value in connection.execute(f'SELECT name, value FROM "{table}"')}  # noqa: S608


def _diagnostics(connection: sqlite3.Connection, columns: dict[str, frozenset[str]]) -> tuple[str, ...]:
    """What nsys itself found wrong: severity 3 is an error; 2 (a warning) comes with every traced child process."""
    if not {"severity", "text"} <= columns.get("DIAGNOSTIC_EVENT", frozenset()):
        return ()
    found = connection.execute("SELECT DISTINCT text FROM DIAGNOSTIC_EVENT WHERE severity > 2 ORDER BY rowid")
    return tuple(" ".join(str(text).split()) for (text,) in found)


def _refuse_graph_mode(export: Export) -> None:
    hidden = export.count(GRAPHS)
    if not hidden:
        return
    total = export.connection.execute(f'SELECT sum("end" - start) FROM "{GRAPHS}"').fetchone()[0] or 0  # noqa: S608
    raise ProfileError(
        f"{export.path} was recorded with --cuda-graph-trace=graph: {hidden} graph launches ({total / 1e6:.1f} ms) hide their "
        "kernels, so a table would leave them out. Record again with --cuda-graph-trace=node (`nox -s profile` does)"
    )


def _refuse_empty(export: Export) -> None:
    if export.count(KERNELS):
        return
    raise ProfileError(
        f"{export.path} has no kernel rows: nothing ran on a GPU while nsys recorded, or the work was in a process that it did "
        "not follow. Check that the capture range began (the engine's --profile flag), that child processes are spawned and "
        "traced (VLLM_WORKER_MULTIPROC_METHOD=spawn, or VLLM_ENABLE_V1_MULTIPROCESSING=0) and that CUPTI may be used here "
        "(another profiler attached, or the driver's permission). This says nothing about speed"
    )
