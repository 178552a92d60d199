"""An issue's address to its workload, the base measured through a stand-in backend, and the page beside published numbers."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
from pathlib import Path

import pytest
from report_fakes import arm

from harness.commands import repro
from harness.context import Context
from harness.errors import EvidenceError, ProbeError, RunError, UnknownWorkloadError, UsageError
from harness.paths import Paths
from harness.pins.reader import read_pins
from harness.progress import Progress
from harness.repro import measure
from harness.repro.find import known_threads, read_any, thread_of, workloads_about
from harness.repro.measure import measure_base, read_reproduction
from harness.repro.report import render
from harness.runs.model import GuardReading, RunResult
from harness.vocabulary import Device, Engine, ExitCode, Guard, GuardState, Outcome, Slot, TreeOrigin

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def context(tmp_path):
    for name in ("upstream", "workloads"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("state"))
    return Context(Paths(root=tmp_path, state=tmp_path / "state"), Progress(quiet=True))


@pytest.mark.parametrize(
    ("text", "workload"),
    [
        ("https://github.com/sgl-project/sglang/issues/2271", "sglang/triton_decode"),
        ("https://github.com/vllm-project/vllm/issues/48076#issuecomment-1", "vllm/triton_decode"),
        ("https://github.com/flashinfer-ai/flashinfer/issues/2990", "flashinfer/softmax"),  # linked as a pull request
        ("https://github.com/FlashInfer-AI/flashinfer/pull/2990/files", "flashinfer/softmax"),
        ("vllm#48076", "vllm/triton_decode"),
        ("sglang 2271", "sglang/triton_decode"),
    ],
)
def test_an_issue_finds_the_workload_that_names_it(text, workload):
    assert workloads_about(Paths.of(), thread_of(text))[0] == workload


def test_the_number_of_another_repository_is_another_thread():
    assert not thread_of("https://github.com/other/vllm/issues/48076").names(
        thread_of("https://github.com/vllm-project/vllm/issues/48076")
    )
    with pytest.raises(UnknownWorkloadError, match=r"no workload reproduces vllm#2271(.|\n)*sglang/issues/2271"):
        workloads_about(Paths.of(), thread_of("vllm#2271"))


@pytest.mark.parametrize("text", ["48076", "https://example.com/vllm-project/vllm/issues/48076", "vllm#x", ""])
def test_what_is_no_thread_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="is no issue or pull request: give its address"):
        thread_of(text)


def test_every_link_of_the_repository_with_a_number_can_be_asked_for():
    for name, links in known_threads(Paths.of()).items():
        for link in links:
            assert name in workloads_about(Paths.of(), thread_of(link))


class Fake:
    """A backend whose runs take 100, 101, ... µs; what a test puts into `spoil` happens at that run."""

    def __init__(self, spoil=None):
        self.spoil = spoil or {}
        self.count = 0
        self.closed = 0

    def open(self, slots, generation, _directory):
        assert slots == (Slot.BASE,)
        if ("start", generation) in self.spoil:
            return {Slot.BASE: RunResult(Outcome.OUT_OF_MEMORY, detail="no room")}
        return {Slot.BASE: self}

    def run(self, request):
        if (request.generation, request.position) in self.spoil:
            return self.spoil[request.generation, request.position]
        if request.position < 0:
            return RunResult(Outcome.OK, {"cold/b1-v65536": 9999.0})
        self.count += 1
        us = 99.0 + self.count
        metrics = {"cold_us": us, "cold/b1-v65536": us, "warm/b1-v65536": us / 2}
        return RunResult(Outcome.OK, metrics, (GuardReading(Guard.LOAD, GuardState.PASSED, "quiet"),))

    def close(self):
        self.closed += 1


@pytest.fixture
def measured(context, monkeypatch):
    monkeypatch.setattr(measure, "MACHINE_LOCK", f"\0upkernel-test-{os.getpid()}")
    monkeypatch.setattr(measure, "device_fingerprint", lambda device, _machine: f"fake {device}")
    monkeypatch.setattr(measure, "check_free", lambda _reader: None)
    workload = read_any(context.paths, "flashinfer/softmax")
    pin = read_pins(context.paths.pins_file).find(Engine.FLASHINFER, "bench")
    made = dataclasses.replace(arm("a" * 40, TreeOrigin.BASE, "base", "b" * 64), name="base")

    def call(fake, **options):
        values = {"generations": 2, "runs": 3} | options
        return workload, measure_base(
            context, pin, workload, Device.CPU, arm_of=lambda *_: made, backend_maker=lambda *_: fake, **values
        )

    return call


def test_the_page_has_medians_and_ranges_beside_what_was_published(measured):
    fake = Fake()
    workload, (found, folder) = measured(fake)
    assert fake.closed == 2
    # Warm-ups do not count; 6 runs of 100 to 105 µs.
    assert found.metrics["cold/b1-v65536"].values == (100.0, 101.0, 102.0, 103.0, 104.0, 105.0)
    assert found.metrics["cold/b1-v65536"].generations == (1, 1, 1, 2, 2, 2)
    text = render(workload, found)
    assert (
        "| flashinfer.softmax | not stated | b1-v65536 | 14.8 us | cold 102.5 [100, 105] µs, warm 51.25 [50, 52.5] µs |" in text
    )
    assert "| flashinfer.softmax | not stated | b64-v65536 | 32.7 us | not measured |" in text
    assert "| b1-v65536 | 102.5 [100, 105] | 51.25 [50, 52.5] | 6 |" in text
    assert "fake cpu; base aaaaaaaaaaaa" in text
    assert read_reproduction(folder / "result.json") == found


def test_a_disturbed_run_is_left_out_and_told(measured):
    fired = RunResult(
        Outcome.OK, {"cold/b1-v65536": 500.0}, (GuardReading(Guard.PROCESSES, GuardState.FIRED, "used by others: x (pid 7)"),)
    )
    workload, (found, _) = measured(Fake({(1, 2): fired}))
    assert 500.0 not in found.metrics["cold/b1-v65536"].values
    assert len(found.metrics["cold/b1-v65536"].values) == 5
    assert "processes: used by others: x (pid 7)" in render(workload, found)
    with pytest.raises(RunError, match="every run was disturbed"):
        measured(Fake({(1, 1): fired}), generations=1, runs=1)


def test_an_engine_that_fails_ends_it_with_its_log(measured, tmp_path):
    log = tmp_path / "worker.log"
    fake = Fake({(2, 1): RunResult(Outcome.CRASHED, detail="illegal address", log=log)})
    with pytest.raises(RunError, match=f"generation 2, run 1 of 3: crashed: illegal address; log: {log}"):
        measured(fake)
    assert fake.closed == 2
    with pytest.raises(RunError, match="did not start: out-of-memory: no room"):
        measured(Fake({("start", 1): None}))


def test_a_result_of_another_kind_is_refused(tmp_path):
    file = tmp_path / "result.json"
    file.write_text('{"schema": 99}')
    with pytest.raises(EvidenceError, match="no result of repro"):
        read_reproduction(file)


def command(context, *words):
    parser = argparse.ArgumentParser()
    repro.configure(parser)
    return repro.main(parser.parse_args(words), context)


def test_without_a_gpu_the_published_numbers_are_told_and_what_is_missing(context, capsys, monkeypatch):
    def no_driver(_device, _machine):
        raise ProbeError("no NVIDIA driver")

    monkeypatch.setattr(measure, "device_fingerprint", no_driver)
    with pytest.raises(ProbeError, match="no NVIDIA driver"):
        command(context, "flashinfer#2990")
    assert "b1-v32000 | 11.2 us" in capsys.readouterr().out
    assert not context.paths.state.exists()
    assert command(context, "flashinfer#2990", "--published") is ExitCode.OK
    assert "b64-v65536 | 32.7 us" in capsys.readouterr().out


def test_options_that_do_not_fit_are_refused(context, capsys):
    with pytest.raises(UsageError, match="which issue"):
        command(context)
    with pytest.raises(UsageError, match="does not name that thread; these do: flashinfer/softmax"):
        command(context, "flashinfer#2990", "--workload", "vllm/triton_decode")
    with pytest.raises(UsageError, match="for cuda, not for cpu"):
        command(context, "flashinfer#2990", "--device", "cpu")
    assert command(context, "--list") is ExitCode.OK
    assert "https://github.com/sgl-project/sglang/issues/2271" in capsys.readouterr().out
