"""The backend against a stand-in for vLLM that crashes, hangs, runs out of memory and gives wrong results on request."""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from harness.arms.model import Arm, Environment
from harness.errors import RunError
from harness.progress import Progress
from harness.runs import client, process, vllm_backend
from harness.runs.model import GuardReading, RunRequest, RunResult
from harness.runs.vllm_backend import VllmBackend
from harness.vocabulary import Device, Direction, Engine, Guard, GuardState, Mode, Outcome, Slot
from harness.workloads.model import EngineWorkload, Metric, Script, TokenCounts
from tests.runs.fake_vllm import FAKE_VLLM

PAIR = (Slot.BASE, Slot.PATCHED)

WORKLOAD = EngineWorkload(
    engine=Engine.VLLM,
    name="fake",
    why="for tests",
    script=Script.SERVE,
    devices=(Device.CPU,),
    model="tiny",
    server_arguments=(),
    arguments=(),
    variables={},
    primary=Metric("mean_tpot_ms", "ms", Direction.LOWER),
    secondary=(Metric("output_throughput", "tokens/s", Direction.HIGHER),),
    tokens=TokenCounts(input=40, output=80),
    warmup_runs=0,
    start_timeout_s=20.0,
    run_timeout_s=20.0,
    links=(),
    digest="0",
)


class Bench:
    """Makes backends whose arms differ in environment variables alone, and closes what they opened."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.opened: list[object] = []
        package = tmp_path / "site" / "vllm" / "entrypoints" / "cli"
        package.mkdir(parents=True)
        (package / "main.py").write_text(FAKE_VLLM)

    def backend(
        self, workload: EngineWorkload = WORKLOAD, mode: Mode = Mode.LIVE, ports=None, **fails: dict[str, str]
    ) -> VllmBackend:
        environment = Environment("fake", Device.CPU, self.path, Path(sys.executable), self.path, {}, "0")
        arms = {
            slot: Arm(
                slot.value, (), environment, {}, {"PYTHONPATH": str(self.path / "site"), **fails.get(slot.value, {})}, "0"
            )
            for slot in Slot
        }
        return VllmBackend(
            arms=arms,
            workload=workload,
            mode=mode,
            model=self.path,
            progress=Progress(io.StringIO(), quiet=True),
            ports=ports or {},
            environment_of=lambda arm, extra: {**os.environ, **arm.variables, **extra},
            modules_of=lambda arm, directory: GuardReading(
                Guard.MODULES, GuardState.PASSED, f"{arm.name} {directory.is_dir()}"
            ),
        )

    def open(self, backend: VllmBackend, slots=PAIR):
        sessions = backend.open(slots, 0, self.path / "generation")
        self.opened += [one for one in sessions.values() if not isinstance(one, RunResult)]
        return sessions

    def request(self, slot: Slot, seed: int = 3) -> RunRequest:
        return RunRequest(0, 0, slot, seed, self.path / "generation" / f"run-{slot}")

    def one(
        self, workload: EngineWorkload = WORKLOAD, mode: Mode = Mode.LIVE, slot: Slot = Slot.PATCHED, **variables: str
    ) -> RunResult:
        backend = self.backend(workload, mode, **{slot.value: variables})
        return self.open(backend, (slot,))[slot].run(self.request(slot))


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path)
    monkeypatch.setattr(vllm_backend, "_AFTER_FAILURE_S", 0.3)
    monkeypatch.setattr(vllm_backend, "_DYING_S", 0.5)
    monkeypatch.setattr(process, "_POLL_S", 0.05)
    monkeypatch.setattr(client, "_POLL_S", 0.05)
    yield made
    for session in made.opened:
        session.close()
    assert not [one for one in psutil.Process().children(recursive=True) if "main" in " ".join(one.cmdline())]


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


@pytest.mark.parametrize("slot", PAIR)
@pytest.mark.parametrize(
    ("how", "outcome", "says"),
    [
        ("crash", Outcome.CRASHED, "the fake engine core died"),
        ("segfault", Outcome.CRASHED, "SIGSEGV"),
        ("memory", Outcome.OUT_OF_MEMORY, "MemoryError"),
    ],
)
def test_a_server_that_fails_at_its_start_is_an_outcome_with_its_log(bench, slot, how, outcome, says):
    sessions = bench.open(bench.backend(**{slot.value: {"FAKE_SERVER": how}}))
    failed = sessions[slot]
    assert isinstance(failed, RunResult)
    assert failed.outcome is outcome
    assert says in failed.detail


def test_a_server_that_hangs_at_its_start_is_stopped_in_time(bench):
    backend = bench.backend(replace(WORKLOAD, start_timeout_s=0.8), base={"FAKE_SERVER": "hang"})
    failed = bench.open(backend, (Slot.BASE,))[Slot.BASE]
    assert failed.outcome is Outcome.TIMED_OUT
    assert "time limit" in failed.detail


def test_a_client_that_cannot_import_is_an_outcome(bench):
    failed = bench.open(bench.backend(base={"FAKE_CLIENT": "crash"}), (Slot.BASE,))[Slot.BASE]
    assert failed.outcome is Outcome.CRASHED
    assert "the fake engine core died" in failed.detail


@pytest.mark.parametrize(("mode", "slot"), [(Mode.LIVE, Slot.BASE), (Mode.PROCESS, Slot.PATCHED)])
@pytest.mark.parametrize(
    ("how", "outcome", "says"),
    [
        ("crash", Outcome.CRASHED, "the fake engine core died"),
        ("memory", Outcome.OUT_OF_MEMORY, "MemoryError"),
        ("silent", Outcome.NO_RESULT, "without writing result.json"),
        ("nan", Outcome.BAD_RESULT, "'mean_tpot_ms' is nan"),
        ("missing", Outcome.BAD_RESULT, "'mean_tpot_ms' is not in the result"),
    ],
)
def test_a_run_that_fails_is_an_outcome_without_metrics(bench, mode, slot, how, outcome, says):  # noqa: PLR0917
    result = bench.one(mode=mode, slot=slot, FAKE_BENCH=how)
    assert result.outcome is outcome
    assert says in result.detail
    assert "mean_tpot_ms" not in result.metrics
    assert result.log.read_text().startswith("fake bench starts")


@pytest.mark.parametrize("mode", list(Mode))
def test_a_run_that_hangs_is_stopped_at_its_limit(bench, mode):
    result = bench.one(replace(WORKLOAD, run_timeout_s=0.7), mode, FAKE_BENCH="hang")
    assert result.outcome is Outcome.TIMED_OUT
    assert result.seconds < 10


def test_a_session_goes_on_after_a_run_that_hung(bench):
    backend = bench.backend(replace(WORKLOAD, run_timeout_s=0.7))
    session = bench.open(backend, (Slot.BASE,))[Slot.BASE]
    assert session.run(bench.request(Slot.BASE)).outcome is Outcome.OK


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
    assert not psutil.Process().children()


def test_an_interrupt_during_a_run_leaves_no_process(bench):
    backend = bench.backend(base={"FAKE_BENCH": "hang"})
    session = bench.open(backend, (Slot.BASE,))[Slot.BASE]
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        session.run(bench.request(Slot.BASE))
    session.close()
    assert not psutil.Process().children()


def test_an_interrupt_during_the_start_leaves_no_process(bench):
    backend = bench.backend(base={"FAKE_SERVER": "hang"})
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        bench.open(backend)
    assert time.monotonic() - start < 10
    assert not psutil.Process().children()
