"""A bench session from request to report, with the real plans, stores and statistics, and a backend that needs no engine."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import io
import itertools
import os
import shutil
from pathlib import Path

import pytest
from experiment_fakes import NOON, TPOT, FakeBackend, steady
from report_fakes import arm

from harness.arms.compare import Cause, Difference, DifferenceKind
from harness.bench import arms as bench_arms
from harness.bench import experiment
from harness.bench.command import run_bench
from harness.bench.request import add_arguments, request_of
from harness.context import Context
from harness.errors import (
    ArmError,
    EvidenceError,
    PinError,
    PlanError,
    RunError,
    TreeError,
    UnknownPinError,
    UnknownWorkloadError,
    UsageError,
)
from harness.experiments import calibration
from harness.experiments.store import experiments, read_experiment
from harness.paths import Paths
from harness.progress import Progress
from harness.reports.evidence import read_evidence
from harness.runs.model import GuardReading, RunResult
from harness.trees.use import removing
from harness.vocabulary import Engine, ExitCode, Guard, GuardState, Outcome, Slot, Tier, TreeOrigin
from harness.workloads.synthetic import model_folder

ROOT = Path(__file__).resolve().parents[2]
SERIES = "vllm/penalties-bin-counts"


@pytest.fixture
def context(tmp_path):
    """A copy of what is read from the checkout, with a state folder of its own."""
    for name in ("upstream", "workloads", "patches"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("state", "evidence", "lock.toml"))
    return Context(Paths(root=tmp_path, state=tmp_path / "state"), Progress(quiet=True))


@pytest.fixture(autouse=True)
def arms(monkeypatch):
    """Arms that are names only, by what they were asked to be."""
    made = {}

    def arm_for(_paths, _pin, what, _device, _progress, *, mirror, name, beside):
        origin = TreeOrigin.BASE if what == "base" else TreeOrigin.SERIES
        letter = "a" if what == "base" else "b"
        made[name] = dataclasses.replace(arm(letter * 40, origin, what, letter * 64), name=name)
        return made[name]

    monkeypatch.setattr(bench_arms, "arm_for", arm_for)
    monkeypatch.setattr(bench_arms, "differences", lambda _a, _b: ())
    monkeypatch.setattr(experiment, "machine_now", lambda: ())
    monkeypatch.setattr(experiment, "check_arm", lambda _arm: None)
    # Not the real one: these tests must pass beside a real experiment.
    monkeypatch.setattr(experiment, "MACHINE_LOCK", f"\0upkernel-test-{os.getpid()}")
    return made


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A second passes between two plans, as it does when engines really start: an experiment is named by it."""
    moments = itertools.count()
    plan_now = experiment.make_plan

    def make_plan(**options):
        return plan_now(**options, now=NOON + datetime.timedelta(seconds=next(moments)))

    monkeypatch.setattr(experiment, "make_plan", make_plan)


def bench(context, backend, *words):
    parser = argparse.ArgumentParser()
    add_arguments(parser, default_series=SERIES)
    request = request_of(parser.parse_args(words))
    return run_bench(context, Engine.VLLM, request, lambda *_: backend, default_workload="vllm/penalties-serve")


def test_a_screen_finds_a_tenth_and_never_says_faster(context, capsys):
    backend = FakeBackend()
    assert bench(context, backend) is ExitCode.OK
    printed = capsys.readouterr().out
    assert "worth confirming" in printed.splitlines()[0]
    assert "faster" not in printed.replace("never says faster", "")
    (name,) = experiments(context.paths)
    evidence = read_evidence(context.paths.experiments / name / "evidence.json")
    assert evidence.decision.primary.ratio == pytest.approx(30 / 33, rel=2e-3)
    assert "worth confirming" in (context.paths.experiments / name / "report.md").read_text()


def test_a_confirm_says_faster_and_its_control_is_stored_as_a_a_record(context, capsys, arms):
    assert bench(context, FakeBackend(), "--confirm") is ExitCode.OK
    assert "faster" in capsys.readouterr().out.splitlines()[0]
    assert set(arms) == {"base", SERIES, "control"}, "each arm has caches of its own"
    (name,) = experiments(context.paths)
    plan, samples = read_experiment(context.paths, name)
    assert {one.slot for one in samples} == {Slot.BASE, Slot.PATCHED, Slot.CONTROL}
    (record,) = calibration.load(context.paths, plan, TPOT.key).records
    assert (record.experiment, record.tier) == (plan.id, Tier.CONFIRM)
    assert abs(record.ratio) < 0.01


def test_a_a_runs_base_twice_counts_its_outcomes_and_keeps_the_noise(context, capsys):
    flat = FakeBackend(result=lambda request: RunResult(Outcome.OK, {TPOT.key: 33.0 + 0.001 * (request.seed % 10)}))
    assert bench(context, flat, "--aa", "--repeat", "3") is ExitCode.OK
    assert capsys.readouterr().out.splitlines()[-1] == "3 experiments: 3 no sign"
    assert len({one.seed for one in flat.requests if one.position == 1}) == 3, "each has its own prompts"
    plan, _ = read_experiment(context.paths, experiments(context.paths)[-1])
    assert plan.aa
    assert len(calibration.load(context.paths, plan, TPOT.key).records) == 3


def test_slower_is_10_and_fails_only_when_asked(context):
    slow = FakeBackend(result=lambda request: RunResult(Outcome.OK, {TPOT.key: 40.0 if request.slot is Slot.PATCHED else 33.0}))
    assert bench(context, slow, "--confirm") is ExitCode.SLOWER
    assert bench(context, slow, "--confirm", "--seed", "1", "--fail-on", "slower") is ExitCode.ERROR


def test_a_crash_is_void_with_its_reason_and_is_no_a_a_record(context, capsys):
    def crash(request):
        return RunResult(Outcome.CRASHED, detail="exit code 7") if request.slot is Slot.PATCHED else steady(request)

    assert bench(context, FakeBackend(result=crash), "--confirm") is ExitCode.VOID
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("void")
    assert "patched" in first
    assert not context.paths.calibration.exists()


def test_a_dry_run_makes_nothing(context, capsys):
    backend = FakeBackend()
    assert bench(context, backend, "--confirm", "--dry-run") is ExitCode.OK
    printed = capsys.readouterr().out
    assert "6 generations" in printed
    assert "B P P B" in printed
    assert "a guess" in printed
    assert backend.requests == []
    assert not context.paths.state.exists()


def test_the_next_plan_knows_what_the_last_one_took(context, capsys):
    timed = FakeBackend(result=lambda request: dataclasses.replace(steady(request), seconds=10.0))
    bench(context, timed)
    capsys.readouterr()
    bench(context, timed, "--dry-run")
    assert "about 1 min 40 s" in capsys.readouterr().out, "8 runs and 2 warm-ups of 10 s"


def test_interrupt_then_resume_keeps_what_was_finished(context, capsys):
    def interrupted(request):
        if request.generation == 3 and request.position == 2:
            raise KeyboardInterrupt
        return steady(request)

    with pytest.raises(KeyboardInterrupt):
        bench(context, FakeBackend(result=interrupted), "--confirm")
    (name,) = experiments(context.paths)
    again = FakeBackend()
    assert bench(context, again, "--resume", name) is ExitCode.OK
    assert "faster" in capsys.readouterr().out.splitlines()[0]
    assert again.opened == [3, 4, 5, 6]


def test_resume_refuses_a_workload_that_changed(context):
    bench(context, FakeBackend())
    (name,) = experiments(context.paths)
    file = context.paths.workloads / "vllm" / "penalties-serve.toml"
    file.write_text(file.read_text().replace("warmup_runs = 1", "warmup_runs = 2"))
    with pytest.raises(UsageError, match="changed since experiment"):
        bench(context, FakeBackend(), "--resume", name)


def test_resume_refuses_an_arm_that_changed(context, monkeypatch):
    bench(context, FakeBackend())
    (name,) = experiments(context.paths)
    monkeypatch.setattr(bench_arms, "arm_for", lambda *_, **_k: arm("c" * 40, TreeOrigin.BASE, "base", "c" * 64))
    with pytest.raises(PlanError, match="is not what was planned"):
        bench(context, FakeBackend(), "--resume", name)


def test_resume_refuses_another_machine(context, monkeypatch):
    bench(context, FakeBackend())
    (name,) = experiments(context.paths)
    other = dataclasses.replace(experiment.read_machine(), cpu="Another CPU")
    monkeypatch.setattr(experiment, "read_machine", lambda: other)
    with pytest.raises(PlanError, match=r"begun on another machine .*this is Another CPU"):
        bench(context, FakeBackend(), "--resume", name)


def test_resume_of_an_unknown_experiment_offers_the_nearest(context):
    bench(context, FakeBackend())
    (name,) = experiments(context.paths)
    with pytest.raises(EvidenceError, match=f"Did you mean '{name}'"):
        bench(context, FakeBackend(), "--resume", name[:-1])


def test_arms_that_differ_in_more_than_the_series_are_refused(context, monkeypatch):
    stray = Difference(DifferenceKind.PACKAGE, "numpy", "2.2.6", "2.4.6", Cause.OTHER)
    own = Difference(DifferenceKind.TREE_FILE, "vllm/a.py", "1" * 12, "2" * 12, Cause.SERIES)
    monkeypatch.setattr(bench_arms, "differences", lambda _a, _b: (own, stray))
    backend = FakeBackend()
    with pytest.raises(ArmError, match=r"differ in 1 thing.*\n  package numpy: 2.2.6 / 2.4.6"):
        bench(context, backend)
    assert backend.requests == []


def test_a_busy_machine_is_told_before_the_minutes_that_a_start_takes(context, monkeypatch):
    busy = GuardReading(Guard.LOAD, GuardState.FIRED, "other processes 1.00 cores; busiest: cc1plus (pid 812) 0.97 cores")
    monkeypatch.setattr(experiment, "machine_now", lambda: (busy,))
    stream = io.StringIO()
    bench(Context(context.paths, Progress(stream, quiet=True)), FakeBackend())
    assert "as it is now would be void, load guard: other processes 1.00" in stream.getvalue()


def test_a_tree_that_is_not_the_locked_commit_is_refused(context):
    shutil.copy(ROOT / "upstream" / "lock.toml", context.paths.lock_file)
    backend = FakeBackend()
    with pytest.raises(PinError, match=r"vllm-0.24.0 from archive is commit f{40}, but"):
        bench(context, backend)
    assert backend.requests == []


@pytest.mark.parametrize("path", ["csrc/cache_kernels.cu", "vllm/x/y.cuh", "CMakeLists.txt", "csrc/ops.h"])
def test_a_change_that_would_have_to_be_compiled_is_refused(context, monkeypatch, path):
    change = Difference(DifferenceKind.TREE_FILE, path, "1" * 12, "2" * 12, Cause.SERIES)
    monkeypatch.setattr(bench_arms, "differences", lambda _a, _b: (change,))
    backend = FakeBackend()
    with pytest.raises(ArmError, match=rf"(?s)run the pinned wheel's binaries, without the change.*{path}"):
        bench(context, backend)
    assert backend.requests == []


def test_a_series_that_says_it_needs_a_build_is_refused(context):
    file = context.paths.patches / SERIES / "series.toml"
    file.write_text(file.read_text().replace("build = false", "build = true"))
    with pytest.raises(ArmError, match="build = true"):
        bench(context, FakeBackend())


def test_resume_finds_the_model_pin_and_device_that_were_named(context, tmp_path):
    model = tmp_path / "real model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    bench(context, FakeBackend(), "--model", str(model), "--pin", "0.24.0")
    (name,) = experiments(context.paths)
    assert bench(context, FakeBackend(), "--resume", name) is ExitCode.OK
    evidence = read_evidence(context.paths.experiments / name / "evidence.json")
    assert evidence.workload.model == "real model", "evidence names the model, not where it lies on this machine"


def test_what_runs_cannot_be_removed_meanwhile(context):
    held = []

    def look(request):
        if not held:
            for folder in (
                context.paths.experiments / experiments(context.paths)[0],
                model_folder(context.paths, "tiny-llama"),
            ):
                with pytest.raises(TreeError, match="in use"), removing(context.paths, folder):
                    pass
                held.append(folder)
        return steady(request)

    assert bench(context, FakeBackend(result=look)) is ExitCode.OK
    assert len(held) == 2


def test_two_experiments_at_once_are_refused(context):
    def second(request):
        with pytest.raises(RunError, match="another experiment is running"):
            bench(context, FakeBackend(), "--seed", "5")
        return steady(request)

    assert bench(context, FakeBackend(result=second)) is ExitCode.OK


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        (("--patched", "vllm/penalties-bin-count"), UsageError, "Did you mean 'vllm/penalties-bin-counts'"),
        (("--workload", "vllm/penalties-serv"), UnknownWorkloadError, "vllm/penalties-serve"),
        (("--pin", "0.24"), UnknownPinError, "0.24.0"),
        (("--device", "cuda"), UsageError, "is for cpu, not for cuda"),
    ],
)
def test_wrong_names_cost_nothing_and_offer_the_nearest(context, words, error, says):
    with pytest.raises(error, match=says):
        bench(context, FakeBackend(), *words)
    assert not context.paths.state.exists()


def test_keep_puts_every_experiment_beside_the_series(context):
    assert bench(context, FakeBackend(), "--confirm", "--keep", "--repeat", "2") is ExitCode.OK
    file, other = sorted((context.paths.patches / SERIES / "evidence").glob("*.json"))
    assert read_evidence(file).decision.verdict == "faster"
    assert read_evidence(other).plan.seed == 1
    assert file.with_suffix(".md").read_text().startswith("**faster**")


def test_keep_does_not_keep_a_void_experiment(context):
    crash = FakeBackend(result=lambda _request: RunResult(Outcome.CRASHED, detail="exit code 7"))
    assert bench(context, crash, "--keep") is ExitCode.VOID
    assert not (context.paths.patches / SERIES / "evidence").exists()


def test_keep_refuses_a_checkout_that_is_no_series(context, tmp_path):
    with pytest.raises(UsageError, match="is none"):
        bench(context, FakeBackend(), "--patched", str(tmp_path), "--keep", "--workload", "vllm/penalties-serve")
