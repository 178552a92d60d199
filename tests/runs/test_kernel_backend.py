"""Workers as processes, through the backend and whole experiments, on a simulated GPU: times, faults, guards, evidence."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from psutil import Process

from harness.arms.model import Arm, Environment
from harness.experiments.execute import execute
from harness.experiments.machine import read_machine
from harness.experiments.plan import MARGIN_KERNEL, ArmIdentity, make_plan
from harness.experiments.store import ExperimentStore
from harness.experiments.verdict import decide
from harness.paths import Paths
from harness.progress import Progress
from harness.reports.evidence import build_evidence, read_evidence, write_evidence
from harness.reports.points import point_lines
from harness.reports.terminal import render_terminal
from harness.runs.kernel_backend import KernelBackend, guards_of
from harness.runs.kernel_names import kernels_in, short_name, told
from harness.runs.kernel_worker import PointResult
from harness.runs.model import GuardReading, RunRequest, RunResult
from harness.trees.model import Tree
from harness.vocabulary import (
    Device,
    Engine,
    Guard,
    GuardState,
    Mode,
    Outcome,
    ScreenSign,
    Slot,
    Source,
    Tier,
    TreeOrigin,
    Verdict,
)
from harness.workloads.kernel_reader import read_kernel_workload

ROOT = Path(__file__).resolve().parents[2]
TIMING = ROOT / "tests" / "timing"
PAIR = (Slot.BASE, Slot.PATCHED)
POINTS = {"small": 4.0, "middle": 20.0, "large": 100.0}


class NoWatch:
    def readings(self):
        return (GuardReading(Guard.LOAD, GuardState.PASSED, "not looked at"),)


@pytest.fixture
def python(tmp_path):
    """An interpreter that runs the fake worker instead of the script that it is given."""
    wrapper = tmp_path / "python"
    words = [sys.executable, str(TIMING / "fake_worker.py")]
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(map(shlex.quote, words))} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


@pytest.fixture
def workload(tmp_path):
    folder = tmp_path / "root" / "workloads" / "vllm"
    folder.mkdir(parents=True)
    (folder / "fake.py").write_text((TIMING / "fake_workload.py").read_text())
    (folder / "script.py").write_text("import torch  # a script of its own has no points and is no workload\n")
    (tmp_path / "root" / "kernels").mkdir()
    paths = Paths(root=tmp_path / "root", state=tmp_path / "state")
    found = read_kernel_workload(paths, "vllm/fake")
    return dataclasses.replace(found, replays=5, start_timeout_s=30.0, run_timeout_s=30.0)


@pytest.fixture
def make(tmp_path, python, workload):
    """Backends whose arms differ in what FAKE_ARM says; every session is closed and no process is left at the end."""

    def backend(changed=None, **arms):
        environment = Environment("fake", Device.CUDA, tmp_path, python, {}, {}, "0")
        tree = Tree(Engine.VLLM, "0", tmp_path, "", "f" * 40, "e" * 40, Source.ARCHIVE, TreeOrigin.BASE, "base")
        made = {
            slot: Arm(slot.value, (tree,), environment, {}, {"FAKE_ARM": json.dumps(arms.get(slot.value, {}))}, slot.value)
            for slot in Slot
        }
        return KernelBackend(
            arms=made,
            workload=changed or workload,
            device=Device.CUDA,
            root=tmp_path / "root",
            progress=Progress(io.StringIO(), quiet=True),
            watch_of=NoWatch,
            environment_of=lambda arm, extra: {**os.environ, "PYTHONPATH": str(ROOT), **arm.variables, **extra},
            modules_of=lambda _arm, _directory: GuardReading(Guard.MODULES, GuardState.PASSED, "as planned"),
        )

    yield backend
    left = [one for one in Process().children(recursive=True) if "fake_worker" in " ".join(one.cmdline())]
    assert not left


def opened(backend, tmp_path, slots=PAIR):
    return backend.open(slots, 1, tmp_path / "generation")


def request(tmp_path, slot=Slot.BASE):
    return RunRequest(1, 1, slot, 1, tmp_path / "run")


def run_once(backend, tmp_path, slot=Slot.BASE):
    (session,) = opened(backend, tmp_path, (slot,)).values()
    try:
        return session.run(request(tmp_path, slot))
    finally:
        session.close()


def test_a_run_is_all_points_with_their_geometric_mean(make, tmp_path):
    result = run_once(make(), tmp_path)
    assert result.outcome is Outcome.OK
    for point, us in POINTS.items():
        assert result.metrics[f"cold/{point}"] == pytest.approx(us, rel=1e-3)
        assert result.metrics[f"warm/{point}"] == pytest.approx(us, rel=1e-3)
    assert result.metrics["cold_us"] == pytest.approx((4 * 20 * 100) ** (1 / 3), rel=1e-3)
    assert {one.guard: one.state for one in result.guards} == dict.fromkeys(
        (Guard.RESULTS, Guard.FLOOR, Guard.SPAN, Guard.COMPILATION, Guard.LOAD, Guard.MODULES), GuardState.PASSED
    )
    assert result.metrics["error/large"] < 1e-12
    stored = json.loads((tmp_path / "run" / "points.json").read_text())
    assert [one["point"] for one in stored] == list(POINTS)
    assert len(stored[0]["times"]["cold"]["samples"]) == 5


@pytest.mark.parametrize(
    "case",
    [
        ("die", Outcome.CRASHED, "exit code 3"),
        ("raise", Outcome.CRASHED, "point middle: ValueError: no such shape"),
        ("memory", Outcome.OUT_OF_MEMORY, "point middle"),
        ("hang", Outcome.TIMED_OUT, "after 1 of 3 points"),
    ],
)
def test_a_worker_that_fails_is_an_outcome_with_its_log(make, workload, tmp_path, case):
    fault, outcome, words = case
    short = dataclasses.replace(workload, run_timeout_s=1.5 if fault == "hang" else 30.0)
    result = run_once(make(short, base={"faults": {"middle": fault}}), tmp_path)
    assert result.outcome is outcome
    assert words in result.detail
    assert result.metrics == {}
    assert result.log is not None
    assert result.log.is_file()


def test_a_wrong_output_fires_the_results_guard_and_names_the_point(make, tmp_path):
    result = run_once(make(base={"faults": {"large": "wrong"}}), tmp_path)
    (reading,) = [one for one in result.guards if one.guard is Guard.RESULTS]
    assert reading.state is GuardState.FIRED
    assert reading.detail.startswith("large: cold, before timing: set 0, output 0 differs from the reference by 0.1")


def test_a_worker_that_does_not_start_says_why_and_the_other_is_up(make, workload, tmp_path):
    broken = tmp_path / "root" / "workloads" / "vllm" / "fake.py"
    broken.write_text(broken.read_text() + "\nraise RuntimeError('boom')\n")
    sessions = opened(make(), tmp_path)
    assert all(isinstance(one, RunResult) for one in sessions.values())
    assert sessions[Slot.BASE].outcome is Outcome.CRASHED
    assert "boom" in sessions[Slot.BASE].detail


def test_points_timed_in_different_ways_fire_the_span_guard():
    results = [PointResult("a", mode="graph"), PointResult("b", mode="wall")]
    (span,) = [one for one in guards_of(results) if one.guard is Guard.SPAN]
    assert span.state is GuardState.FIRED
    assert "graph, wall" in span.detail


def test_other_kernels_than_in_the_first_run_fire_the_span_guard():
    results = [PointResult("a", mode="graph", kernels={"cold": {"slow": 2}})]
    (span,) = [one for one in guards_of(results, {"cold/a": {"fast": 2}}) if one.guard is Guard.SPAN]
    assert span.state is GuardState.FIRED
    assert "cold/a: other kernels ran" in span.detail
    (span,) = [one for one in guards_of(results, {"cold/a": {"slow": 2}}) if one.guard is Guard.SPAN]
    assert span.state is GuardState.PASSED


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        (
            "_ZN10flashinfer34BatchPrefillWithPagedKVCacheKernelINS_12KernelTraitsEEvT_",
            "flashinfer::BatchPrefillWithPagedKVCacheKernel",
        ),
        (
            "_ZN2at6native43_GLOBAL__N__b6de9c8c_10_SoftMax_cu_9f978f6322cunn_SoftMaxForwardRegIfffEvPT1_",
            "at::native::cunn_SoftMaxForwardReg",
        ),
        ("_Z6kernelPf", "kernel"),
        ("kernel_unified_attention", "kernel_unified_attention"),
    ],
)
def test_a_mangled_name_becomes_namespaces_and_name(mangled, name):
    assert short_name(mangled) == name
    assert kernels_in(told([mangled, mangled])) == {name}


def plan_of(workload, tier, *, aa=False):
    same = ArmIdentity("base", "a" * 40, "a" * 64)
    return make_plan(
        tier=tier,
        mode=Mode.LIVE,
        workload="vllm/fake",
        workload_digest=workload.digest,
        device="Fake GPU",
        base=same,
        patched=same if aa else ArmIdentity("vllm/faster", "b" * 40, "b" * 64),
        primary=workload.primary,
        secondary=workload.secondary,
        warmup_runs=workload.warmup_runs,
        margin=MARGIN_KERNEL,
        aa=aa,
    )


def experiment(backend, plan, tmp_path):
    paths = Paths(root=tmp_path / "root", state=tmp_path / "state")
    with ExperimentStore.create(paths, plan) as store:
        samples = execute(plan, backend, store, Progress(io.StringIO(), quiet=True))
    decision = decide(plan, samples, {})
    arms = {slot: backend.arms[slot] for slot in plan.arms}
    return build_evidence(plan, samples, decision, workload=backend.workload, machine=read_machine(), arms=arms, history={})


def test_a_screen_finds_a_tenth_and_its_report_has_every_point(make, workload, tmp_path):
    evidence = experiment(make(patched={"factor": 0.9, "kernel": "softmax_split"}), plan_of(workload, Tier.SCREEN), tmp_path)
    assert evidence.decision.sign is ScreenSign.WORTH_CONFIRMING
    assert evidence.decision.primary.ratio == pytest.approx(0.9, rel=2e-3)
    lines = point_lines(evidence)
    assert len(lines) == len(POINTS) + 1
    assert lines[-1] == "kernels that ran: base only fake::softmax; patched only softmax_split"
    shown = re.match(
        r"middle: cold ([\d.]+) -> ([\d.]+) µs, (-[\d.]+) % \[.*\]; warm ([\d.]+) -> ([\d.]+) µs, .*; error 0 -> 0", lines[1]
    )
    assert shown is not None, lines[1]
    # Seen at 19.99 on a busy machine: how often the stand-in is called before the window follows the real clock.
    assert [float(one) for one in shown.groups()] == pytest.approx([20, 18, -10, 20, 18], rel=0.02)
    assert "kernel workload, 3 points" in render_terminal(evidence)
    write_evidence(tmp_path / "evidence.json", evidence)
    assert read_evidence(tmp_path / "evidence.json").workload == evidence.workload


def test_a_confirm_of_the_same_code_is_equivalent_within_half_a_percent(make, workload, tmp_path):
    evidence = experiment(make(), plan_of(workload, Tier.CONFIRM), tmp_path)
    assert evidence.decision.verdict is Verdict.EQUIVALENT
    assert evidence.decision.primary.low > 0.995
    assert evidence.decision.primary.high < 1.005
    assert len(evidence.plan.generations) == 6


def test_a_failing_point_makes_the_experiment_void(make, workload, tmp_path):
    evidence = experiment(make(patched={"faults": {"large": "wrong"}}), plan_of(workload, Tier.SCREEN), tmp_path)
    assert evidence.decision.sign is ScreenSign.VOID
    assert "guard results: large" in evidence.decision.failures[0]
