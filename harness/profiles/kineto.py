"""From a trace of the profiler inside PyTorch (Kineto JSON, also gzipped) to the table: the second source, where nsys is not.

Both engines write such traces (`--profiler-config.profiler torch`, `--profile --profile-activities CPU GPU`). Times are
microseconds, whole in old traces and with three decimals in new ones; a kernel and its launch share args.correlation.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import ProfileError
from harness.profiles.events import Events, Names, profile_from, unattributed_phases
from harness.profiles.model import Profile, Recorder
from harness.profiles.phases import StepRange, phase_of, timelines

__all__ = ["read_trace"]

_DEVICE_WORK = {"kernel": False, "gpu_memcpy": True, "gpu_memset": True}
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
_RANGES = frozenset({"user_annotation", "cpu_op"})
# Below this resolution a mean of short kernels is made of rounding: traces of 2022 and 2023 count whole microseconds.
_COARSE_NS = 1000


def read_trace(path: Path, *, label: str | None = None) -> Profile:
    """The table of one trace. Raises ProfileError: not JSON, truncated, no trace events, no kernel among them."""
    trace = _load(path)
    events = trace.get("traceEvents")
    if not isinstance(events, list):
        raise ProfileError(f"{path} has no traceEvents: it is JSON, but no trace of PyTorch's profiler")
    complete = [one for one in events if isinstance(one, dict) and one.get("ph") == "X"]
    work = [one for one in complete if one.get("cat") in _DEVICE_WORK]
    if not any(one["cat"] == "kernel" for one in work):
        raise ProfileError(
            f"{path} has no kernel among its {len(events)} events: the profiler ran without GPU activities, or in a process "
            "that launched nothing. Profile with the GPU activity on, in the worker process. This says nothing about speed"
        )
    try:
        return _profile(label or path.name.split(".")[0], trace, complete, work)
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"{path}: an event lacks what every trace of PyTorch's profiler has ({error!r})") from error


def _load(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as stream:
            trace = json.load(stream)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ProfileError(
            f"{path} is truncated or no gzip file: {error}. Was the profiled process killed while writing?"
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path} is not whole JSON: {error}. Was the profiled process killed while writing?") from error
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror or error}") from error
    if not isinstance(trace, dict):
        raise ProfileError(f"{path} holds a {type(trace).__name__}, not the object of a trace")
    return trace


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _profile(label: str, trace: Mapping[str, Any], complete: list[dict[str, Any]], work: list[dict[str, Any]]) -> Profile:
    names = Names()
    count = len(work)
    start = np.fromiter((_ns(one["ts"]) for one in work), dtype=np.int64, count=count)
    duration = np.fromiter((_ns(one.get("dur", 0)) for one in work), dtype=np.int64, count=count)
    steps = _steps(complete)
    phase, between = unattributed_phases(count)
    threads = _threads(complete, work)
    launched = np.array([at for at, _ in threads], dtype=np.int64)
    thread_of = np.array([thread for _, thread in threads], dtype=np.int64)
    for thread, line in timelines(steps).items():
        own = np.flatnonzero(thread_of == thread)
        phase[own], between[own] = line.at(launched[own])
    orphans = sum(thread < 0 for _, thread in threads)
    notes = []
    if not steps:
        notes.append("no range in the trace marks a step that upkernel knows, so no kernel has a phase")
    if orphans:
        notes.append(f"{orphans} of {count} events have no launch in the trace (cut off at its edges): unattributed")
    if (duration % _COARSE_NS == 0).all():
        notes.append("times are whole microseconds: a mean of calls shorter than about 10 us is rounding")
    events = Events(
        start=start,
        end=start + duration,
        device=np.fromiter((_device(one) for one in work), dtype=np.int32, count=count),
        name=np.fromiter((_name(names, one) for one in work), dtype=np.int32, count=count),
        is_copy=np.fromiter((_DEVICE_WORK[one["cat"]] for one in work), dtype=np.bool_, count=count),
        phase=phase,
        between=between,
    )
    return profile_from(
        events,
        names.names,
        label=label,
        recorder=Recorder.KINETO,
        tool=f"PyTorch profiler, schema {trace.get('schemaVersion', 'unknown')}",
        steps=Counter(step.phase for step in steps),
        notes=notes,
    )


def _device(event: Mapping[str, Any]) -> int:
    arguments = event.get("args", {})
    return int(arguments.get("device", event["pid"]))


def _name(names: Names, event: Mapping[str, Any]) -> int:
    """Copies get the names that the reader of nsys gives them: 'Memcpy HtoD (Pinned -> Device)' is 'Memcpy HtoD'."""
    name = str(event["name"])
    if event["cat"] == "kernel":
        return names.of(name)
    shown = name.partition("(")[0].strip()
    return names.exactly(shown, shown)


def _thread(event: Mapping[str, Any]) -> tuple[object, object]:
    return event.get("pid"), event.get("tid")


def _numbers(complete: Iterable[Mapping[str, Any]]) -> dict[tuple[object, object], int]:
    """A number for each thread that launched or marked anything, the same for every caller: order of the file."""
    table: dict[tuple[object, object], int] = {}
    for one in complete:
        if one.get("cat") in _LAUNCHES or one.get("cat") in _RANGES:
            table.setdefault(_thread(one), len(table))
    return table


def _steps(complete: list[dict[str, Any]]) -> list[StepRange]:
    numbers = _numbers(complete)
    steps = []
    for one in complete:
        if one.get("cat") in _RANGES:
            phase = phase_of(str(one.get("name", "")))
            if phase is not None:
                begin = _ns(one["ts"])
                steps.append(StepRange(numbers[_thread(one)], begin, begin + _ns(one.get("dur", 0)), phase))
    return steps


def _threads(complete: list[dict[str, Any]], work: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """For each device event the time and thread of its launch; thread -1 where the trace has none."""
    numbers = _numbers(complete)
    launches: dict[int, tuple[int, int]] = {}
    for one in complete:
        if one.get("cat") in _LAUNCHES:
            correlation = one.get("args", {}).get("correlation")
            if correlation is not None:
                launches.setdefault(int(correlation), (_ns(one["ts"]), numbers[_thread(one)]))
    return [launches.get(int(one.get("args", {}).get("correlation", -1)), (0, -1)) for one in work]
