"""Traces of PyTorch's profiler: a real one, known ones, and broken ones."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ProfileError
from harness.profiles.kineto import read_trace
from harness.vocabulary import Phase

TRACE = Path(__file__).parent / "fixtures" / "decode-kineto.json.gz"


def _kernel(
    start: float, duration: float, *, correlation: int | None = None, name: str = "k", device: int = 0
) -> dict[str, Any]:
    arguments = {"device": device} | ({} if correlation is None else {"correlation": correlation})
    return {"ph": "X", "cat": "kernel", "name": name, "pid": device, "tid": 7, "ts": start, "dur": duration, "args": arguments}


def _launch(start: float, correlation: int, *, tid: int = 1, category: str = "cuda_runtime") -> dict[str, Any]:
    arguments = {"correlation": correlation}
    return {
        "ph": "X",
        "cat": category,
        "name": "cudaLaunchKernel",
        "pid": 9,
        "tid": tid,
        "ts": start,
        "dur": 1,
        "args": arguments,
    }


def _range(start: float, duration: float, text: str, *, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": text, "pid": 9, "tid": tid, "ts": start, "dur": duration}


def _write(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
    return path


def test_a_real_trace_agrees_with_the_recording_of_nsys() -> None:
    profile = read_trace(TRACE)
    assert profile.steps == {Phase.PREFILL: 1, Phase.DECODE: 4}
    norm = {row.phase: row for row in profile.rows if row.name == "_toy_norm_kernel"}
    assert (norm[Phase.PREFILL].calls, norm[Phase.DECODE].calls) == (1, 8)
    assert norm[Phase.DECODE].mean_us == pytest.approx(1.35, abs=0.1)
    assert profile.phase_ns(Phase.UNATTRIBUTED) == 0
    assert {row.name for row in profile.rows if row.name.startswith("Mem")} == {"Memcpy HtoD", "Memcpy DtoH", "Memset"}
    assert sum(row.total_ns for row in profile.rows) + profile.devices[0].overlap_ns == profile.devices[0].busy_ns


def test_phase_comes_from_the_launch_and_its_thread(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "t.json",
        _range(100, 10, "step[EXTEND bs=1 toks=9]"),
        _range(100, 10, "step[DECODE bs=8]", tid=2),
        _launch(105, 1),
        _launch(105, 2, tid=2, category="cuda_driver"),
        _kernel(500.5, 2.25, correlation=1),
        _kernel(600, 3, correlation=2),
        _kernel(700, 4, correlation=99),
    )
    profile = read_trace(path)
    assert {row.phase: row.total_ns for row in profile.rows} == {
        Phase.PREFILL: 2250,
        Phase.DECODE: 3000,
        Phase.UNATTRIBUTED: 4000,
    }
    assert any("1 of 3 events have no launch" in note for note in profile.notes)


def test_whole_microseconds_are_said(tmp_path: Path) -> None:
    assert any("whole microseconds" in note for note in read_trace(_write(tmp_path / "t.json", _kernel(1, 3))).notes)
    assert not any("whole microseconds" in note for note in read_trace(_write(tmp_path / "t.json", _kernel(1, 3.5))).notes)


def test_two_devices(tmp_path: Path) -> None:
    profile = read_trace(_write(tmp_path / "t.json", _kernel(0, 5), _kernel(0, 7, device=1)))
    assert [(one.device, one.busy_ns) for one in profile.devices] == [(0, 5000), (1, 7000)]


@pytest.mark.parametrize("kept", [0.2, 0.9])
def test_truncated_gzip(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(TRACE.read_bytes()[: int(TRACE.stat().st_size * kept)])
    with pytest.raises(ProfileError, match="truncated"):
        read_trace(path)


def test_truncated_json(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(gzip.decompress(TRACE.read_bytes())[:-100])
    with pytest.raises(ProfileError, match="not whole JSON"):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "holds a list"),
        ("{}", "no traceEvents"),
        ('{"traceEvents": []}', "no kernel among its 0 events.*nothing about speed"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm"}]}', "no kernel among its 1 events"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k"}]}', "an event lacks"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "ts": "soon", "dur": 1}]}', "an event lacks"),
    ],
)
def test_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message):
        read_trace(path)
