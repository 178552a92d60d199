"""A kernel workload through the same bench session as an engine's script: margin, mode, device, what is refused, resuming."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import os
import shutil
import sys
from pathlib import Path

import pytest
from experiment_fakes import NOON, FakeBackend
from report_fakes import arm

from harness.bench import arms as bench_arms
from harness.bench import devices, experiment
from harness.bench.devices import device_fingerprint
from harness.commands import bench_kernels
from harness.context import Context
from harness.errors import ProbeError, UsageError
from harness.experiments.machine import read_machine
from harness.experiments.store import experiments, read_experiment
from harness.paths import Paths
from harness.progress import Progress
from harness.reports.evidence import read_evidence
from harness.runs.model import RunResult
from harness.vocabulary import Device, ExitCode, Mode, Outcome, Slot, TreeOrigin, Verdict

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = "vllm/triton_decode"


@pytest.fixture
def context(tmp_path):
    for name in ("upstream", "workloads", "patches"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("state", "evidence", "lock.toml"))
    return Context(Paths(root=tmp_path, state=tmp_path / "state"), Progress(quiet=True))


def times(request, noise=0.002):
    """No change, but what a process keeps for life: up in one generation, down in the next."""
    offset = noise if request.generation % 2 else -noise
    us = 100.0 * (1 + (request.seed % 7) / 1e5) * (1 + offset if request.slot is Slot.PATCHED else 1.0)
    return RunResult(Outcome.OK, {"cold_us": us, "warm_us": us / 2})


@pytest.fixture
def backend(monkeypatch):
    """Stands in for the workers, the arms and the GPU; keeps what it was made with."""
    made = FakeBackend(result=times)
    moments = itertools.count()
    plan_now = experiment.make_plan
    monkeypatch.setattr(experiment, "kernel_backend", lambda *given: setattr(made, "given", given) or made)
    monkeypatch.setattr(experiment, "device_fingerprint", lambda device, _machine: f"fake {device}")
    monkeypatch.setattr(experiment, "machine_now", lambda: ())
    monkeypatch.setattr(experiment, "check_arm", lambda _arm: None)
    monkeypatch.setattr(experiment, "MACHINE_LOCK", f"\0upkernel-test-{os.getpid()}")
    monkeypatch.setattr(
        experiment, "make_plan", lambda **given: plan_now(**given, now=NOON + datetime.timedelta(seconds=next(moments)))
    )

    def arm_for(_paths, _pin, what, _device, _progress, *, mirror, name, beside):
        letter = "a" if what == "base" else "b"
        made_arm = arm(letter * 40, TreeOrigin.BASE if what == "base" else TreeOrigin.PATH, what, letter * 64)
        return dataclasses.replace(made_arm, name=name)

    monkeypatch.setattr(bench_arms, "arm_for", arm_for)
    monkeypatch.setattr(bench_arms, "differences", lambda _a, _b: ())
    return made


def bench(context, *words):
    parser = argparse.ArgumentParser()
    bench_kernels.configure(parser)
    return bench_kernels.main(parser.parse_args(words), context)


def patched(tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir(exist_ok=True)
    return str(folder)


def test_equivalent_means_half_a_percent_for_a_kernel(context, backend, tmp_path, capsys):
    assert bench(context, "--workload", WORKLOAD, "--patched", patched(tmp_path), "--confirm") is ExitCode.OK
    assert "within 1 ± 0.5 %" in capsys.readouterr().out.splitlines()[0]
    (name,) = experiments(context.paths)
    evidence = read_evidence(context.paths.experiments / name / "evidence.json")
    assert evidence.decision.verdict is Verdict.EQUIVALENT
    plan = evidence.plan
    assert (plan.margin, plan.mode, plan.primary.key, plan.device) == (0.005, Mode.LIVE, "cold_us", "fake cuda")
    assert [one.key for one in plan.secondary] == ["warm_us"]
    assert evidence.workload.points[0] == "bf16-32/8-b1-1024"
    assert backend.given[3] is Device.CUDA


def test_a_spread_that_would_do_for_an_engine_is_inconclusive_for_a_kernel(context, backend, tmp_path):
    """±0.6 % over six generations leaves an interval of ±0.7 %: within 1 %, not within 0.5 %."""
    backend.result = lambda request: times(request, noise=0.006)
    assert bench(context, "--workload", WORKLOAD, "--patched", patched(tmp_path), "--confirm") is ExitCode.INCONCLUSIVE


def test_an_interrupted_session_is_resumed_by_its_id_alone(context, backend, tmp_path):
    def interrupted(request):
        if request.generation == 2:
            raise KeyboardInterrupt
        return times(request)

    backend.result = interrupted
    with pytest.raises(KeyboardInterrupt):
        bench(context, "--workload", WORKLOAD, "--patched", patched(tmp_path), "--confirm")
    (name,) = experiments(context.paths)
    backend.result = times
    backend.opened.clear()
    assert bench(context, "--resume", name) is ExitCode.OK
    assert backend.opened == [2, 3, 4, 5, 6]


def test_a_changed_workload_file_is_not_resumed(context, backend, tmp_path):
    bench(context, "--workload", WORKLOAD, "--patched", patched(tmp_path))
    (name,) = experiments(context.paths)
    assert read_experiment(context.paths, name)[0].workload == WORKLOAD
    file = context.paths.workloads / "vllm" / "triton_decode.py"
    file.write_text(file.read_text() + "# changed\n")
    with pytest.raises(UsageError, match="changed since experiment"):
        bench(context, "--resume", name)


def test_what_does_not_go_together_is_refused(context, backend, tmp_path):
    series = ("--patched", patched(tmp_path))
    with pytest.raises(UsageError, match="its mode is live"):
        bench(context, "--workload", WORKLOAD, *series, "--mode", "process")
    with pytest.raises(UsageError, match="loads no model"):
        bench(context, "--workload", WORKLOAD, *series, "--model", "tiny-llama")
    with pytest.raises(UsageError, match="is for cuda, not for cpu"):
        bench(context, "--workload", WORKLOAD, *series, "--device", "cpu")
    with pytest.raises(UsageError, match="say what is compared"):
        bench(context, "--workload", WORKLOAD)
    with pytest.raises(UsageError, match="names no engine"):
        bench(context, *series)
    assert backend.requests == []


def test_a_dry_run_needs_no_gpu(context, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(devices.shutil, "which", lambda _name: None)
    assert bench(context, "--workload", WORKLOAD, "--patched", patched(tmp_path), "--dry-run") is ExitCode.OK
    assert "cold_us" in capsys.readouterr().out
    with pytest.raises(ProbeError, match="no NVIDIA driver"):
        bench(context, "--workload", WORKLOAD, "--patched", patched(tmp_path))
    assert not context.paths.state.exists()


def test_a_gpu_is_part_of_the_device_that_noise_is_kept_for(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200'\n")
    tool.chmod(0o755)
    monkeypatch.setattr(devices.shutil, "which", lambda _name: str(tool))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    machine = read_machine()
    assert device_fingerprint(Device.CUDA, machine) == f"NVIDIA H200, {machine.fingerprint}"
    assert device_fingerprint(Device.CPU, machine) == machine.fingerprint
    tool.write_text("#!/bin/sh\necho 'No devices were found' >&2\nexit 6\n")
    with pytest.raises(ProbeError, match="No devices were found"):
        device_fingerprint(Device.CUDA, machine)
