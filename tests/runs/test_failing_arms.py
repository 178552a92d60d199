"""Whichever arm fails, and however: the experiment is void, and the report's first line says why."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from harness.experiments.codec import canonical
from harness.experiments.machine import read_machine
from harness.experiments.samples import Sample
from harness.experiments.verdict import decide
from harness.reports.evidence import build_evidence
from harness.reports.words import headline
from harness.vocabulary import Mode, Outcome, ScreenSign, Slot, Tier
from tests.experiments.experiment_fakes import paths_in, plan_of
from tests.runs.fake_bench import PAIR, WORKLOAD

ENGINE_DIED = "RuntimeError: the fake engine core died"


@pytest.fixture
def void(bench):
    """Makes a screen with one failing arm; gives the report's first line and the sample of the failure."""

    def run(mode: Mode, slot: Slot, workload=WORKLOAD, **variables: str) -> tuple[str, Sample]:
        plan = plan_of(Tier.SCREEN, mode, warmup_runs=0)
        backend = bench.backend(workload, mode, **{slot.value: variables})
        samples = bench.experiment(plan, backend)
        decision = decide(plan, samples)
        assert decision.sign is ScreenSign.VOID
        arms = {one: backend.arms[one] for one in PAIR}
        evidence = build_evidence(plan, samples, decision, workload=workload, machine=read_machine(), arms=arms, history={})
        (failed,) = (one for one in samples if one.outcome not in {Outcome.OK, Outcome.INTERRUPTED})
        assert failed.slot is slot
        assert failed.metrics == {}
        # Where the run lay on this machine is nobody's business, and the log is found by its path in the experiment.
        assert str(bench.path) not in canonical(evidence)
        assert (paths_in(bench.path).experiments / plan.id / failed.log).is_file()
        return headline(evidence), failed

    return run


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("slot", PAIR)
@pytest.mark.parametrize(
    ("how", "outcome", "why"),
    [
        ("crash", Outcome.CRASHED, rf"exit code 1 after [\d.]+ s: {ENGINE_DIED}"),
        ("killed", Outcome.OUT_OF_MEMORY, r"killed by SIGKILL after [\d.]+ s"),
        ("hang", Outcome.TIMED_OUT, r"stopped at the time limit after [\d.]+ s"),
    ],
)
def test_a_server_that_does_not_start(void, mode, slot, how, outcome, why):  # noqa: PLR0917
    # The other arm has to start within the limit, on a slow machine too.
    workload = replace(WORKLOAD, start_timeout_s=2.0) if how == "hang" else WORKLOAD
    line, failed = void(mode, slot, workload, FAKE_SERVER=how)
    where = "start" if mode is Mode.LIVE else f"run {failed.position}"
    log = f"runs/1/{slot if mode is Mode.LIVE else failed.position}/server.log"
    assert re.fullmatch(
        rf"void: generation 1, {where} \({slot}\): {outcome}: the server ended while it started: {why}; log: {log}", line
    )


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("slot", PAIR)
@pytest.mark.parametrize(
    ("how", "outcome", "why"),
    [
        ("crash", Outcome.CRASHED, rf"the serve script failed: exit code 1 after [\d.]+ s: {ENGINE_DIED}"),
        ("memory", Outcome.OUT_OF_MEMORY, r"the serve script failed: exit code 1 after [\d.]+ s: MemoryError: cannot have it"),
        ("killed", Outcome.OUT_OF_MEMORY, r"the serve script failed: killed by SIGKILL after [\d.]+ s"),
        ("hang", Outcome.TIMED_OUT, r"the serve script failed: stopped at the time limit after [\d.]+ s"),
        ("silent", Outcome.NO_RESULT, "the script ended without writing result.json"),
    ],
)
def test_a_run_that_fails(void, mode, slot, how, outcome, why):  # noqa: PLR0917
    workload = replace(WORKLOAD, run_timeout_s=1.5) if how == "hang" else WORKLOAD
    line, failed = void(mode, slot, workload, FAKE_BENCH=how)
    position = failed.position
    log = f"runs/1/{position}/script.log"
    assert re.fullmatch(rf"void: generation 1, run {position} \({slot}\): {outcome}: {why}; log: {log}", line)


def test_a_server_that_dies_during_a_run(void):
    line, _ = void(Mode.LIVE, Slot.PATCHED, FAKE_BENCH="kill-server")
    assert "the server ended while it should have served: exit code 1" in line
    assert line.endswith("EngineDeadError: the fake engine died under way; log: runs/1/patched/server.log")
