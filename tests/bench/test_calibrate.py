"""The whole calibration with simulated runs: how many, what is stored, going on after a stop, and what it then serves."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import json
import math
import os
import random
import shutil
from pathlib import Path

import pytest
from experiment_fakes import NOON, FakeBackend
from report_fakes import arm

from harness.bench import arms as bench_arms
from harness.bench import calibrate as calibrate_measure
from harness.bench import experiment
from harness.bench.ahead import AheadBackend
from harness.calibrate.model import calibrations, nearest_noise
from harness.calibrate.noise import alarms_of, noise_of
from harness.commands import bench_kernels, calibrate
from harness.context import Context
from harness.errors import EvidenceError, RunError, UsageError
from harness.experiments.store import experiments
from harness.paths import Paths
from harness.progress import Progress
from harness.runs.model import GuardReading, RunResult
from harness.vocabulary import Device, Engine, ExitCode, Guard, GuardState, Mode, Outcome, Slot, TreeOrigin, WorkloadKind

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = "vllm/triton_decode"
POINT = "bf16-32/8-b1-1024"
OFFSET = 0.003


def times(request):
    """What a process keeps for life is drawn anew for each generation and slot; runs differ by a tenth of that."""
    process = random.Random(f"{request.directory.parts[-4]} {request.generation} {request.slot}").gauss(0, OFFSET)
    run = random.Random(f"{request.seed} {request.slot} {request.position}").gauss(0, OFFSET / 10)
    us = 100.0 * math.exp(process + run)
    return RunResult(Outcome.OK, {"cold_us": us, "warm_us": us / 2, f"cold/{POINT}": us})


@pytest.fixture
def context(tmp_path):
    for name in ("upstream", "workloads", "patches"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("state", "evidence", "lock.toml"))
    return Context(Paths(root=tmp_path, state=tmp_path / "state"), Progress(quiet=True))


@pytest.fixture
def backend(monkeypatch):
    """Stands in for the workers, the arms and the GPU; keeps what it was made with."""
    made = FakeBackend(result=times)
    moments = itertools.count()
    plan_now = experiment.make_plan
    monkeypatch.setattr(experiment, "kernel_backend", lambda *given: setattr(made, "given", given) or made)
    for module in (experiment, calibrate_measure):
        monkeypatch.setattr(module, "device_fingerprint", lambda device, _machine: f"fake {device}")
        monkeypatch.setattr(module, "MACHINE_LOCK", f"\0upkernel-test-{os.getpid()}")
    monkeypatch.setattr(experiment, "machine_now", lambda: ())
    monkeypatch.setattr(experiment, "check_arm", lambda _arm: None)
    monkeypatch.setattr(
        experiment, "make_plan", lambda **given: plan_now(**given, now=NOON + datetime.timedelta(seconds=next(moments)))
    )

    def arm_for(_paths, _pin, what, _device, _progress, *, mirror, name, beside):
        letter = "a" if what == "base" else "b"
        return dataclasses.replace(arm(letter * 40, TreeOrigin.PATH, what, letter * 64), name=name)

    monkeypatch.setattr(bench_arms, "arm_for", arm_for)
    monkeypatch.setattr(bench_arms, "differences", lambda _a, _b: ())
    return made


def run(context, *words):
    parser = argparse.ArgumentParser()
    calibrate.configure(parser)
    return calibrate.main(parser.parse_args(words), context)


def test_as_many_experiments_as_asked_for(context, backend, capsys):
    assert run(context, "--workload", WORKLOAD, "--device", "cuda", "--points", POINT, "--experiments", "8") is ExitCode.OK
    (found,) = calibrations(context.paths)
    assert len(found.trials) == 8
    assert (found.points, found.mode, found.kind, found.generations) == ((POINT,), Mode.LIVE, WorkloadKind.KERNEL, 6)
    assert backend.given[2].points == (POINT,), "the workers measure no other"
    noise = noise_of(found.pairs("cold_us"))
    assert noise.generations == 48
    assert noise.deviation == pytest.approx(OFFSET * math.sqrt(2), rel=4 / math.sqrt(2 * 48))
    assert noise.within < noise.deviation / 3
    printed = capsys.readouterr().out
    alarms = alarms_of(found.pairs("cold_us"))
    assert printed.startswith(f"**cold_us: {alarms.count} of 8 ")
    assert f"| cold/{POINT} | " in printed
    assert "error/" not in printed


def test_it_goes_on_to_a_larger_number_and_repeats_nothing(context, backend):
    words = ("--workload", WORKLOAD, "--device", "cuda", "--points", POINT)
    run(context, *words, "--experiments", "2")
    (before,) = calibrations(context.paths)
    run(context, *words, "--experiments", "3")
    run(context, *words, "--experiments", "3")
    (after,) = calibrations(context.paths)
    assert after.trials[:2] == before.trials
    assert len(after.trials) == len(experiments(context.paths)) == 3


def test_an_experiment_that_was_stopped_is_gone_on_with(context, backend):
    def interrupted(request):
        if request.generation == 4:
            raise KeyboardInterrupt
        return times(request)

    words = ("--workload", WORKLOAD, "--device", "cuda", "--points", POINT, "--experiments", "1")
    backend.result = interrupted
    with pytest.raises(KeyboardInterrupt):
        run(context, *words)
    assert not calibrations(context.paths)
    backend.result = times
    backend.opened.clear()
    run(context, *words)
    assert backend.opened == [4, 5, 6]
    assert len(experiments(context.paths)) == len(calibrations(context.paths)[0].trials) == 1


def test_other_points_are_another_calibration(context, backend):
    for point in (POINT, "bf16-32/8-b1-8192"):
        run(context, "--workload", WORKLOAD, "--device", "cuda", "--points", point, "--experiments", "1")
    assert sorted(one.points for one in calibrations(context.paths)) == [(POINT,), ("bf16-32/8-b1-8192",)]


def test_three_points_that_lie_evenly_when_none_is_named(context, backend):
    run(context, "--workload", WORKLOAD, "--device", "cuda", "--experiments", "1")
    (found,) = calibrations(context.paths)
    assert len(found.points) == 3
    assert found.points[0] == POINT


def test_no_experiment_is_begun_after_the_minutes(context, backend):
    run(context, "--workload", WORKLOAD, "--device", "cuda", "--points", POINT, "--experiments", "5", "--minutes", "0")
    assert sum(len(one.trials) for one in calibrations(context.paths)) <= 1


def test_a_void_experiment_is_not_counted_and_three_in_a_row_stop_it(context, backend):
    fired = GuardReading(Guard.CLOCKS, GuardState.FIRED, "SM clock 1200 MHz, limit 1900")
    backend.result = lambda request: dataclasses.replace(times(request), guards=(fired,))
    with pytest.raises(RunError, match=r"3 A/A experiments in a row were void.*SM clock 1200 MHz"):
        run(context, "--workload", WORKLOAD, "--device", "cuda", "--points", POINT, "--experiments", "5")
    assert not any(one.trials for one in calibrations(context.paths))


def test_what_is_kept_as_evidence_can_be_read_again(context, backend):
    run(context, "--workload", WORKLOAD, "--device", "cuda", "--points", POINT, "--experiments", "2", "--evidence", "here")
    folder = context.paths.workloads / "calibrations"
    assert json.loads((folder / "here.json").read_text())["trials"][1]["values"]["cold_us"]
    assert (folder / "here.md").read_text().startswith("**cold_us: ")


def test_a_kernel_of_another_engine_is_served_and_an_engines_script_is_not(context, backend):
    run(context, "--workload", WORKLOAD, "--device", "cuda", "--points", POINT, "--experiments", "2")
    asked = {"metric": "cold_us", "device": "fake cuda", "mode": Mode.LIVE, "engine": Engine.SGLANG}
    found = nearest_noise(context.paths, **asked, kind=WorkloadKind.KERNEL)
    assert found is not None
    assert found[1] == noise_of(found[0].pairs("cold_us"))
    assert nearest_noise(context.paths, **asked, kind=WorkloadKind.ENGINE) is None
    assert nearest_noise(context.paths, **{**asked, "device": "another"}, kind=WorkloadKind.KERNEL) is None


def test_a_later_report_tells_of_the_calibration(context, backend, tmp_path, capsys):
    run(context, "--workload", WORKLOAD, "--device", "cuda", "--points", POINT, "--experiments", "2")
    (tmp_path / "checkout").mkdir()
    parser = argparse.ArgumentParser()
    bench_kernels.configure(parser)
    words = ("--workload", "sglang/triton_decode", "--patched", str(tmp_path / "checkout"))
    bench_kernels.main(parser.parse_args(words), context)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"calibrated {NOON:%Y-%m-%d} with {WORKLOAD}: cold_us false alarms" in printed
    assert "this device's calibration)" in printed


def test_a_damaged_file_is_named(context, backend):
    run(context, "--workload", WORKLOAD, "--device", "cuda", "--points", POINT, "--experiments", "1")
    (file,) = context.paths.calibration.glob("trials-*.json")
    file.write_text(file.read_text().replace('"schema": 1', '"schema": 7'))
    with pytest.raises(EvidenceError, match=rf"{file.name} has schema version 7"):
        run(context, "--list")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--workload"),
        (("--workload", "penalties"), "names no engine"),
        (("--workload", WORKLOAD, "--points", "bf16-32/8-b1-1025"), "has no point 'bf16-32/8-b1-1025'"),
        (("--workload", "vllm/llama-8b-serve", "--points", POINT), "has no points"),
    ],
)
def test_what_cannot_be_calibrated(words, said, context, backend):
    with pytest.raises(UsageError, match=said):
        run(context, "--device", Device.CUDA.value, *words)


@dataclasses.dataclass
class FakeSession:
    name: str
    closed: int = 0

    def run(self, request):
        raise NotImplementedError

    def close(self):
        self.closed += 1


class FakeWorkers:
    """What harness.runs.kernel_backend.KernelBackend offers, with the groups that were started together."""

    def __init__(self):
        self.groups = []
        self.sessions = {}

    def open_generations(self, slots, directories):
        self.groups.append(tuple(directories))
        assert len(set(directories.values())) == len(directories), "a folder each"
        made = {number: {slot: FakeSession(f"{number} {slot}") for slot in slots} for number in directories}
        self.sessions |= made
        return tuple(made.items())


def test_workers_are_started_in_groups_and_each_generation_gets_its_own(tmp_path):
    workers, pair = FakeWorkers(), (Slot.BASE, Slot.PATCHED)
    backend = AheadBackend(workers, last=8, width=3)
    handed = [backend.open(pair if number % 2 else pair[::-1], number, tmp_path / str(number)) for number in range(1, 8)]
    assert workers.groups == [(1, 2, 3), (4, 5, 6), (7, 8)]
    assert [one[Slot.BASE].name for one in handed] == [f"{number} base" for number in range(1, 8)]
    backend.close()
    backend.close()
    assert {number: one[Slot.BASE].closed for number, one in workers.sessions.items() if one[Slot.BASE].closed} == {8: 1}


def test_a_generation_that_is_made_again_gets_fresh_workers(tmp_path):
    workers, pair = FakeWorkers(), (Slot.BASE, Slot.PATCHED)
    backend = AheadBackend(workers, last=6, width=3)
    first = backend.open(pair, 1, tmp_path / "1")
    again = backend.open(pair, 1, tmp_path / "1-again-1")
    assert again[Slot.BASE] is not first[Slot.BASE]
    assert workers.groups == [(1, 2, 3), (1,)], "those of 2 and 3 are up already"
