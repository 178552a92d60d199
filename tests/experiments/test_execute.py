from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from experiment_fakes import TPOT, FakeBackend, paths_in, plan_of, steady

from harness.experiments.execute import execute
from harness.experiments.store import ExperimentStore, read_experiment
from harness.experiments.verdict import decide
from harness.progress import Progress
from harness.runs.model import GuardReading, RunResult
from harness.vocabulary import Guard, GuardState, Mode, Outcome, Slot, Tier, Verdict


@pytest.fixture
def paths(tmp_path):
    return paths_in(tmp_path)


@pytest.fixture
def stream():
    return io.StringIO()


def run(paths, plan, backend, stream, *, resume=False):
    make = (lambda: ExperimentStore.resume(paths, plan.id)) if resume else (lambda: ExperimentStore.create(paths, plan))
    with make() as store:
        return execute(plan, backend, store, Progress(stream))


def test_every_planned_run_is_made_once_in_order_with_its_seed(paths, stream):
    plan = plan_of(warmup_runs=2)
    backend = FakeBackend()
    samples = run(paths, plan, backend, stream)
    counted = [(one.generation, one.position, one.slot, one.seed) for one in samples if one.counted]
    assert counted == [(one.number, turn.position, turn.slot, turn.seed) for one in plan.generations for turn in one.turns]
    assert backend.opened == [1, 2, 3, 4, 5, 6]
    assert decide(plan, samples).verdict is Verdict.FASTER
    assert read_experiment(paths, plan.id)[1] == samples


def test_every_arm_warms_up_with_the_same_seeds_before_the_first_run(paths, stream):
    plan = plan_of(Tier.SCREEN, warmup_runs=2, seed=6)
    backend = FakeBackend()
    run(paths, plan, backend, stream)
    first, second = plan.generations[0].warmup_seeds
    warm = [(one.position, one.slot, one.seed) for one in backend.requests[:4]]
    assert warm == [(-1, Slot.BASE, first), (-1, Slot.PATCHED, first), (-2, Slot.BASE, second), (-2, Slot.PATCHED, second)]
    assert backend.requests[4].position == 1


def test_who_starts_and_warms_up_first_takes_turns(paths, stream):
    backend = FakeBackend()
    run(paths, plan_of(warmup_runs=1, seed=6), backend, stream)
    first = [
        next(one.slot for one in backend.requests if (one.generation, one.position) == (number, -1)) for number in range(1, 7)
    ]
    assert first == [Slot.BASE, Slot.PATCHED, Slot.CONTROL] * 2
    other = FakeBackend()
    run(paths, plan_of(Tier.SCREEN, warmup_runs=1, seed=7), other, stream)
    assert other.requests[0].slot is Slot.PATCHED


def test_process_mode_warms_up_in_the_first_generation_alone(paths, stream):
    plan = plan_of(mode=Mode.PROCESS, warmup_runs=1)
    samples = run(paths, plan, FakeBackend(), stream)
    assert {one.generation for one in samples if one.position < 0} == {1}


def test_all_sessions_are_closed(paths, stream):
    backend = FakeBackend()
    run(paths, plan_of(), backend, stream)
    assert [one.closed for one in backend.sessions] == [1] * 18


def test_each_run_has_a_folder_of_its_own(paths, stream):
    plan = plan_of(Tier.SCREEN)
    backend = FakeBackend()
    run(paths, plan, backend, stream)
    folder = paths.experiments / plan.id / "runs" / "1"
    assert [one.directory for one in backend.requests[2:]] == [folder / str(position) for position in range(1, 9)]


def crash_at(generation, position, outcome=Outcome.CRASHED):
    def result(request):
        if (request.generation, request.position) == (generation, position):
            return RunResult(outcome, detail="Segmentation fault", log=request.directory / "log.txt")
        return steady(request)

    return result


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.OUT_OF_MEMORY, Outcome.NO_RESULT])
def test_a_failed_run_stops_the_experiment_and_is_kept(paths, stream, outcome):
    plan = plan_of()
    backend = FakeBackend(result=crash_at(3, 2, outcome))
    samples = run(paths, plan, backend, stream)
    assert backend.opened == [1, 2, 3]
    assert [one.closed for one in backend.sessions] == [1] * 9
    decision = decide(plan, samples)
    assert decision.verdict is Verdict.VOID
    assert decision.failures[0].endswith(f"{outcome}: Segmentation fault; log: runs/3/2/log.txt")
    assert "the experiment is void: generation 3, run 2" in stream.getvalue()


def test_a_void_experiment_is_not_tried_again_on_resume(paths, stream):
    plan = plan_of()
    run(paths, plan, FakeBackend(result=crash_at(1, 1)), stream)
    backend = FakeBackend()
    run(paths, plan, backend, stream, resume=True)
    assert backend.opened == []


def test_an_arm_that_does_not_start_is_an_outcome_and_the_others_are_closed(paths, stream):
    plan = plan_of()
    failed = RunResult(Outcome.TIMED_OUT, detail="no answer on port 8000 in 300 s")
    backend = FakeBackend(start=lambda generation, slot: failed if (generation, slot) == (2, Slot.PATCHED) else None)
    samples = run(paths, plan, backend, stream)
    assert [one.closed for one in backend.sessions] == [1] * 5
    assert decide(plan, samples).failures == ("generation 2, start (patched): timed-out: no answer on port 8000 in 300 s",)


def test_a_crash_while_warming_up_voids(paths, stream):
    plan = plan_of(seed=6)
    samples = run(paths, plan, FakeBackend(result=crash_at(1, -1)), stream)
    assert "generation 1, warm-up 1 (base): crashed" in decide(plan, samples).failures[0]


def test_a_metric_that_is_nan_stops_the_experiment(paths, stream):
    plan = plan_of()
    samples = run(paths, plan, FakeBackend(result=lambda request: RunResult(Outcome.OK, {TPOT.key: float("nan")})), stream)
    assert "primary metric mean_tpot_ms is nan" in decide(plan, samples).failures[0]
    assert sum(one.counted for one in samples) == 1


def loaded(times, guard=Guard.LOAD):
    """The machine is loaded in run 2 of generation 2, so many times."""
    left = [times]

    def result(request):
        made = steady(request)
        if (request.generation, request.position) == (2, 2) and left[0]:
            left[0] -= 1
            return RunResult(made.outcome, made.metrics, (GuardReading(guard, GuardState.FIRED, "load 1.9, limit 0.5"),))
        return made

    return result


def test_a_disturbed_generation_is_made_again_within_the_limit_and_reported(paths, stream):
    plan = plan_of()
    backend = FakeBackend(result=loaded(2))
    decision = decide(plan, run(paths, plan, backend, stream))
    assert backend.opened == [1, 2, 2, 2, 3, 4, 5, 6]
    assert decision.verdict is Verdict.FASTER
    assert len(decision.replaced) == 2
    assert "generation 2 is made again (1 of 2)" in stream.getvalue()


def test_beyond_the_limit_the_experiment_stops_and_is_void(paths, stream):
    plan = plan_of()
    backend = FakeBackend(result=loaded(3))
    decision = decide(plan, run(paths, plan, backend, stream))
    assert backend.opened == [1, 2, 2, 2]
    assert decision.verdict is Verdict.VOID
    assert "3 generations were disturbed" in decision.failures[-1]


def test_wrong_modules_stop_the_experiment_at_once(paths, stream):
    plan = plan_of()
    backend = FakeBackend(result=loaded(1, Guard.MODULES))
    assert decide(plan, run(paths, plan, backend, stream)).verdict is Verdict.VOID
    assert backend.opened == [1, 2]


def interrupt_at(generation, position):
    def result(request):
        if (request.generation, request.position) == (generation, position):
            raise KeyboardInterrupt
        return steady(request)

    return result


def test_an_interrupt_closes_the_sessions_keeps_what_is_finished_and_resumes(paths, stream):
    plan = plan_of()
    backend = FakeBackend(result=interrupt_at(3, 4))
    with pytest.raises(KeyboardInterrupt):
        run(paths, plan, backend, stream)
    assert [one.closed for one in backend.sessions] == [1] * 9
    assert "2 of 6 generations are kept, generation 3 will be made again. Go on with: --resume" in stream.getvalue()
    again = FakeBackend()
    samples = run(paths, plan, again, stream, resume=True)
    assert again.opened == [3, 4, 5, 6]
    decision = decide(plan, samples)
    assert decision.verdict is Verdict.FASTER
    assert decision.replaced == ("generation 3, run 4 (base): interrupted",)
    assert {one.attempt for one in samples if one.generation == 3} == {0, 1}


def test_a_session_that_reports_an_interrupt_stops_too(paths, stream):
    plan = plan_of()
    with pytest.raises(KeyboardInterrupt):
        run(paths, plan, FakeBackend(result=lambda request: RunResult(Outcome.INTERRUPTED)), stream)


def test_a_session_that_cannot_be_closed_does_not_keep_the_others_open(paths, stream):
    backend = FakeBackend(result=interrupt_at(1, 1))
    plan = plan_of(Tier.SCREEN)
    closed = []

    class Stubborn(FakeBackend):
        def open(self, slots, generation, directory):
            made = backend.open(slots, generation, directory)
            for slot, session in made.items():
                session.close = lambda slot=slot: (closed.append(slot), (_ for _ in ()).throw(KeyboardInterrupt))[0]
            return made

    with pytest.raises(KeyboardInterrupt):
        run(paths, plan, Stubborn(), stream)
    assert sorted(closed) == [Slot.BASE, Slot.PATCHED]


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from experiment_fakes import FakeBackend, paths_in, plan_of, steady
from harness.experiments.execute import execute
from harness.experiments.store import ExperimentStore
from harness.progress import Progress

def result(request):
    if (request.generation, request.position) == (2, 3):
        os.kill(os.getpid(), getattr(signal, sys.argv[3]))
    return steady(request)

plan = plan_of()
with ExperimentStore.create(paths_in(Path(sys.argv[1])), plan) as store:
    execute(plan, FakeBackend(result=result), store, Progress(quiet=True))
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_a_signal_in_the_middle_of_a_run_loses_nothing_finished(paths, tmp_path, stream, name):
    plan = plan_of()
    fakes = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(fakes), name], capture_output=True, check=False, env=os.environ
    )
    assert done.returncode == -getattr(signal, name)
    before = read_experiment(paths, plan.id)[1]
    assert sum(one.counted and one.generation == 1 for one in before) == 8
    backend = FakeBackend()
    samples = run(paths, plan, backend, stream, resume=True)
    assert backend.opened == [2, 3, 4, 5, 6]
    assert samples[: len(before)] == before
    decision = decide(plan, samples)
    assert decision.verdict is Verdict.FASTER
    assert "interrupted" in decision.replaced[0]


def test_the_time_left_comes_from_what_runs_took(paths, stream):
    plan = plan_of(warmup_runs=1, seed=6)
    backend = FakeBackend(result=lambda request: RunResult(Outcome.OK, steady(request).metrics, seconds=10.0))
    run(paths, plan, backend, stream)
    text = stream.getvalue()
    assert "generation 1/6: starting base, patched, control, time left unknown yet" in text
    # 3 warm-ups and 1 run of 10 s are done: 7 runs here, 5 generations of 3 warm-ups and 8 runs to come.
    assert f"generation 1/6, run 2/8 (patched), about {(7 + 55) * 10 // 60} min" in text
    assert "generation 6/6, run 8/8 (control), about 10.0 s left" in text


def test_the_time_left_falls_back_on_the_plan(paths, stream):
    plan = plan_of(Tier.SCREEN, warmup_runs=1, start_seconds=73.0, run_seconds=17.0, seed=6)
    run(paths, plan, FakeBackend(), stream)
    assert f"starting base, patched, about {(73 + 10 * 17) // 60} min {(73 + 10 * 17) % 60} s left" in stream.getvalue()


def test_the_harness_itself_costs_less_than_two_percent_of_runs_of_five_seconds(paths, stream):
    plan = plan_of(warmup_runs=1)
    began = time.monotonic()
    samples = run(paths, plan, FakeBackend(run_seconds=0.01), stream)
    wall = time.monotonic() - began
    runs = [one for one in samples if one.position != 0]
    overhead = (wall - sum(one.seconds for one in runs)) / len(runs)
    assert overhead < 0.02 * 5.0
