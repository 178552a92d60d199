"""Exports with known content, in the columns of schema 3.25: small ones for tests, and as large as one likes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

KERNEL_COLUMNS = (
    *("start", "end", "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid", "demangledName"),
    *("shortName", "mangledName", "launchType", "cacheConfig", "registersPerThread", "gridX", "gridY", "gridZ", "blockX"),
    *("blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "localMemoryTotal", "gridId"),
    *("sharedMemoryExecuted", "graphNodeId", "sharedMemoryLimitConfig"),
)
COPY_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes", "copyKind", "graphNodeId")
LAUNCH_COLUMNS = ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId")
RANGE_COLUMNS = ("start", "end", "eventType", "rangeId", "text", "globalTid", "endGlobalTid", "textId", "domainId")


def process(number: int) -> int:
    """The n-th process as a globalPid."""
    return number << 24


def thread(number: int, tid: int | None = None) -> int:
    """globalTid; the main thread's id is the process's."""
    return process(number) | (number if tid is None else tid)


@dataclass(frozen=True)
class Kernel:
    start: int
    end: int
    name: str = "kernel"
    device: int = 0
    correlation: int | None = None
    process: int = 1
    node: int | None = None


@dataclass(frozen=True)
class Launch:
    start: int
    correlation: int
    process: int = 1
    tid: int | None = None
    name: str = "cudaLaunchKernel_v7000"


@dataclass(frozen=True)
class Range:
    start: int
    end: int | None
    text: str
    process: int = 1
    tid: int | None = None
    by_id: bool = False


@dataclass
class Content:
    kernels: Sequence[Kernel] = ()
    copies: Sequence[tuple[int, int, int, int]] = ()  # start, end, copyKind, correlation
    launches: Sequence[Launch] = ()
    ranges: Sequence[Range] = ()
    graph_launches: Sequence[tuple[int, int]] = ()
    mode: str | None = "Node"
    diagnostics: Sequence[tuple[int, str]] = ()
    # Columns to leave out, as older schemas do.
    without: frozenset[str] = field(default_factory=frozenset)


def make_export(path: Path, content: Content) -> Path:
    """Tables without rows are not written, as nsys does it."""
    strings: dict[str, int] = {}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)

    def table(name: str, columns: Sequence[str], rows: Iterable[dict[str, object]]) -> None:
        kept = [one for one in columns if one not in content.without]
        made = False
        for row in rows:
            if not made:
                connection.execute(f'CREATE TABLE "{name}" ({", ".join(f"{one!r}" for one in kept)})'.replace("'", '"'))
                made = True
            connection.execute(f'INSERT INTO "{name}" VALUES ({",".join("?" * len(kept))})', [row.get(one) for one in kept])

    kernels = (
        {
            "start": one.start, "end": one.end, "deviceId": one.device, "correlationId": one.correlation,
            "globalPid": process(one.process), "demangledName": text(one.name), "shortName": text(one.name.split("<")[0]),
            "graphNodeId": one.node, "streamId": 7, "contextId": 1,
        }
        for one in content.kernels
    )  # fmt: skip
    copies = (
        {
            "start": start,
            "end": end,
            "deviceId": 0,
            "copyKind": kind,
            "correlationId": number,
            "globalPid": process(1),
            "bytes": 8,
        }
        for start, end, kind, number in content.copies
    )
    launches = (
        {"start": one.start, "end": one.start + 5, "eventClass": 0, "globalTid": thread(one.process, one.tid),
         "correlationId": one.correlation, "nameId": text(one.name), "returnValue": 0}
        for one in content.launches
    )  # fmt: skip
    ranges = (
        {"start": one.start, "end": one.end, "eventType": 59, "globalTid": thread(one.process, one.tid),
         "text": None if one.by_id else one.text, "textId": text(one.text) if one.by_id else None, "domainId": 0}
        for one in content.ranges
    )  # fmt: skip
    table("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL_COLUMNS, kernels)
    table("CUPTI_ACTIVITY_KIND_MEMCPY", COPY_COLUMNS, copies)
    table("CUPTI_ACTIVITY_KIND_RUNTIME", LAUNCH_COLUMNS, launches)
    table("NVTX_EVENTS", RANGE_COLUMNS, ranges)
    graphs = ({"start": start, "end": end, "deviceId": 0} for start, end in content.graph_launches)
    table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", ("start", "end", "deviceId"), graphs)
    table("DIAGNOSTIC_EVENT", ("severity", "text"), ({"severity": level, "text": said} for level, said in content.diagnostics))
    table("StringIds", ("id", "value"), ({"id": number, "value": value} for value, number in strings.items()))
    versions = {"EXPORT_PRODUCT_VERSION": "2026.2.1.210", "EXPORT_SCHEMA_VERSION": "3.25.0"}
    table("META_DATA_EXPORT", ("name", "value"), ({"name": name, "value": value} for name, value in versions.items()))
    if content.mode is not None:
        table("META_DATA_CAPTURE", ("name", "value"), [{"name": "CUDA_GRAPH_TRACE_OPTIONS:MODE", "value": content.mode}])
    connection.commit()
    connection.close()
    return path


# A replayed graph of a decode step has a few hundred kernels of a dozen names.
STEP_KERNELS = 400
_NAMES = tuple(f"void engine::kernel_{index}<(int){index}, float>(const float *, float *)" for index in range(40))


def make_large(path: Path, kernels: int, step_kernels: int = STEP_KERNELS) -> int:
    """An export of `kernels` kernels (about 90 bytes each in the file), 19 other calls before each launch.

    One call launches `step_kernels` kernels: 1 is a run without CUDA graphs. Kernels run one after the other, 2000 ns each,
    with 500 ns of overlap into the next in each eighth. Returns the busy time.
    """
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    for name, columns in (
        ("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL_COLUMNS),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", LAUNCH_COLUMNS),
        ("NVTX_EVENTS", RANGE_COLUMNS),
        ("StringIds", ("id", "value")),
        ("META_DATA_CAPTURE", ("name", "value")),
    ):
        connection.execute(f'CREATE TABLE "{name}" ({", ".join(f"{one!r} INT" for one in columns)})'.replace("'", '"'))
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(_NAMES))
    connection.execute("INSERT INTO StringIds VALUES (100, 'cudaGraphLaunch_v10000'), (101, 'cudaStreamIsCapturing_v10000')")
    connection.execute("INSERT INTO META_DATA_CAPTURE VALUES ('CUDA_GRAPH_TRACE_OPTIONS:MODE', 'Node')")
    base = 281_476_838_981_632  # a machine number above the process, as in real files
    begin = 1_700_000_000_000

    def rows() -> Iterable[tuple[object, ...]]:
        for index in range(kernels):
            start = begin + index * 2000
            end = start + (2500 if index % 8 == 0 and index + 1 < kernels else 2000)
            name = index % len(_NAMES)
            node = 4_294_967_296 + index % step_kernels
            yield (
                *(start, end, 0, 1, None, 7, index // step_kernels + 1, base, name, name, name, 0, 0, 96, 132, 8, 1, 256, 1, 1),
                *(0, 65536, 0, 412_876_800, index, 102_400, node, 0),
            )

    marks = ",".join("?" * len(KERNEL_COLUMNS))
    connection.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", rows())
    steps = -(-kernels // step_kernels)
    # 20 calls a step, of which one launches.
    connection.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0, NULL)",
        (
            (
                begin + step * step_kernels * 2000 + call,
                begin + step * step_kernels * 2000 + call + 1,
                base | 4242,
                number,
                100 + bool(call),
            )
            for step in range(steps)
            for call, number in enumerate([step + 1, *(10_000_000 + step * 20 + other for other in range(19))])
        ),
    )
    connection.executemany(
        "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, 'execute_context_0(0)_generation_8(8)', ?, NULL, NULL, 0)",
        (
            (begin + step * step_kernels * 2000 - 10, begin + step * step_kernels * 2000 + 50, base | 4242)
            for step in range(steps)
        ),
    )
    connection.commit()
    connection.close()
    return kernels * 2000
