"""The backend against a stand-in for vLLM that crashes, hangs, runs out of memory and gives wrong results on request."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from dataclasses import replace

import psutil
import pytest

from harness.errors import RunError
from harness.runs.model import GuardReading, RunResult
from harness.vocabulary import Direction, Guard, GuardState, Mode, Outcome, Slot
from harness.workloads.model import Metric, Script
from tests.runs.fake_bench import PAIR, WORKLOAD


def guard(result: RunResult, which: Guard) -> GuardReading:
    return next(one for one in result.guards if one.guard is which)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_good_run_gives_its_metrics_and_guards(bench, mode):
    result = bench.one(mode=mode)
    assert result.outcome is Outcome.OK, result.detail
    assert result.metrics == {"mean_tpot_ms": 13.0, "output_throughput": 53.3}
    assert guard(result, Guard.TOKENS).state is GuardState.PASSED
    assert guard(result, Guard.ERRORS).state is GuardState.PASSED
    assert guard(result, Guard.MODULES).detail == "patched True"
    assert result.seconds > 0


def test_both_arms_are_up_at_once_on_ports_of_their_own(bench):
    sessions = bench.open(bench.backend())
    for slot in (*PAIR, *reversed(PAIR)):
        assert sessions[slot].run(bench.request(slot)).outcome is Outcome.OK
    assert sessions[Slot.BASE].server.port != sessions[Slot.PATCHED].server.port


@pytest.mark.parametrize(
    ("slot", "how", "outcome", "says"),
    [
        (Slot.BASE, "segfault", Outcome.CRASHED, "SIGSEGV"),
        (Slot.PATCHED, "memory", Outcome.OUT_OF_MEMORY, "MemoryError"),
    ],
)
def test_a_server_that_fails_at_its_start_is_an_outcome_with_its_log(bench, slot, how, outcome, says):
    failed = bench.open(bench.backend(**{slot.value: {"FAKE_SERVER": how}}))[slot]
    assert isinstance(failed, RunResult)
    assert failed.outcome is outcome
    assert says in failed.detail
    assert failed.log == bench.path / "generation" / slot / "server.log"


def test_the_server_that_was_stopped_for_another_one_says_so(bench):
    backend = bench.backend(base={"FAKE_SERVER": "crash"}, patched={"FAKE_SERVER": "hang"})
    stopped = bench.open(backend)[Slot.PATCHED]
    assert (stopped.outcome, stopped.detail) == (Outcome.INTERRUPTED, "stopped: the base server failed to start")
    assert stopped.log == bench.path / "generation" / "patched" / "server.log"


def test_a_client_that_cannot_import_is_an_outcome_with_its_log(bench):
    failed = bench.open(bench.backend(base={"FAKE_CLIENT": "crash"}), (Slot.BASE,))[Slot.BASE]
    assert failed.outcome is Outcome.CRASHED
    assert "the fake engine core died" in failed.detail
    assert failed.log == bench.path / "generation" / "base" / "client.log"


@pytest.mark.parametrize(("mode", "slot"), [(Mode.LIVE, Slot.BASE), (Mode.PROCESS, Slot.PATCHED)])
@pytest.mark.parametrize(
    ("how", "says"), [("nan", "'mean_tpot_ms' is nan"), ("missing", "'mean_tpot_ms' is not in the result")]
)
def test_a_bad_result_is_an_outcome_without_the_metric(bench, mode, slot, how, says):
    result = bench.one(mode=mode, slot=slot, FAKE_BENCH=how)
    assert result.outcome is Outcome.BAD_RESULT
    assert result.detail.endswith(f"the primary metric {says}")
    assert "mean_tpot_ms" not in result.metrics
    assert result.log.read_text().startswith("fake bench starts")


@pytest.mark.parametrize("mode", list(Mode))
def test_a_session_goes_on_after_a_run_that_hung(bench, mode):
    hangs = {"FAKE_BENCH": "hang", "FAKE_SEED": "3"}
    session = bench.open(bench.backend(replace(WORKLOAD, run_timeout_s=1.5), mode, base=hangs), (Slot.BASE,))[Slot.BASE]
    hung = session.run(bench.request(Slot.BASE, seed=3))
    assert hung.outcome is Outcome.TIMED_OUT
    assert 1.5 <= hung.seconds < 15
    after = session.run(bench.request(Slot.BASE, seed=4))
    assert (after.outcome, after.metrics["mean_tpot_ms"]) == (Outcome.OK, 14.0), after.detail


def test_a_live_client_that_is_killed_itself_is_an_outcome_with_its_log(bench):
    session = bench.open(bench.backend(), (Slot.BASE,))[Slot.BASE]
    (host,) = (one for one in psutil.Process(session.client._child.pid).children())
    bench.vmstat.write_text("oom_kill 8\n")
    host.kill()
    result = session.run(bench.request(Slot.BASE))
    assert result.outcome is Outcome.OUT_OF_MEMORY
    assert "the client's process ended during a run: killed by SIGKILL" in result.detail
    assert result.log == bench.path / "generation" / "base" / "client.log"


@pytest.mark.parametrize("mode", list(Mode))
def test_a_folder_that_cannot_be_made_is_an_error_that_says_what_to_do(bench, mode):
    session = bench.open(bench.backend(mode=mode), (Slot.BASE,))[Slot.BASE]
    request = bench.request(Slot.BASE)
    request.directory.parent.mkdir(parents=True, exist_ok=True)
    request.directory.write_text("a file is in the way")
    with pytest.raises(RunError, match=r"cannot make .*/run-base: File exists.*make room.*resume"):
        session.run(request)


def test_a_session_folder_that_cannot_be_made_stops_the_server_that_is_up(bench):
    (bench.path / "generation").mkdir()
    (bench.path / "generation" / "patched").write_text("a file is in the way")
    with pytest.raises(RunError, match=r"cannot make .*/generation/patched"):
        bench.open(bench.backend())
    assert not bench.left()


def test_a_server_that_dies_during_a_run_is_named_rather_than_the_client(bench):
    result = bench.one(FAKE_BENCH="kill-server")
    assert result.outcome is Outcome.CRASHED
    assert "EngineDeadError" in result.detail


def test_an_early_stop_fires_the_token_guard(bench):
    reading = guard(bench.one(FAKE_BENCH="short"), Guard.TOKENS)
    assert reading.state is GuardState.FIRED
    assert "wrote 79 tokens" in reading.detail


def test_a_failed_request_fires_the_error_guard(bench):
    reading = guard(bench.one(FAKE_BENCH="failed"), Guard.ERRORS)
    assert reading.state is GuardState.FIRED
    assert "ConnectionError: gone" in reading.detail


def test_compilation_during_a_run_fires_its_guard(bench):
    log = bench.path / "generation" / "patched" / "server.log"
    result = bench.one(FAKE_BENCH="compile", FAKE_LOG=str(log))
    assert guard(result, Guard.COMPILATION).state is GuardState.FIRED


def test_prompts_from_the_prefix_cache_fire_its_guard_in_the_run_that_had_them(bench):
    session = bench.open(bench.backend(base={"FAKE_BENCH": "cached", "FAKE_SEED": "3"}), (Slot.BASE,))[Slot.BASE]
    reading = guard(session.run(bench.request(Slot.BASE, seed=3)), Guard.PREFIX_CACHE)
    assert (reading.state, reading.detail) == (
        GuardState.FIRED,
        "16 prompt tokens came from the prefix cache, limit 0",
    )
    assert guard(session.run(bench.request(Slot.BASE, seed=4)), Guard.PREFIX_CACHE).state is GuardState.PASSED


def test_a_compiled_file_that_appears_during_a_run_fires_without_a_word_in_the_log(bench):
    caches = bench.path / "caches"
    caches.mkdir()
    variables = {"FAKE_BENCH": "kernel", "TRITON_CACHE_DIR": str(caches)}
    reading = guard(bench.one(**variables), Guard.COMPILATION)
    assert reading.state is GuardState.FIRED
    assert "1 compiled files are new in the arm's caches: kernel.cubin" in reading.detail


def test_latency_runs_without_a_server(bench):
    workload = replace(
        WORKLOAD, script=Script.LATENCY, primary=Metric("percentiles.50", "s", Direction.LOWER), secondary=(), tokens=None
    )
    result = bench.one(workload, Mode.PROCESS)
    assert result.metrics == {"percentiles.50": 0.5}
    assert guard(result, Guard.TOKENS).state is GuardState.ABSENT
    assert not list(bench.path.rglob("server.log"))


def test_a_port_in_use_is_an_error_that_names_it_and_starts_nothing(bench):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            RunError, match=rf"port {port} on 127.0.0.1 cannot be had: Address already in use.*process {os.getpid()}"
        ):
            bench.open(bench.backend(ports={Slot.PATCHED: port}))
    assert not bench.left()


def test_an_interrupt_during_a_run_leaves_no_process(bench):
    backend = bench.backend(base={"FAKE_BENCH": "hang"})
    session = bench.open(backend, (Slot.BASE,))[Slot.BASE]
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        session.run(bench.request(Slot.BASE))
    session.close()
    assert not bench.left()


def test_an_interrupt_during_the_start_leaves_no_process(bench):
    backend = bench.backend(base={"FAKE_SERVER": "hang"})
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        bench.open(backend)
    assert time.monotonic() - start < 10
    assert not bench.left()
