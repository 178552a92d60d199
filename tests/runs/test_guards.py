"""Guards fire for what disturbs a run and stay silent for what is ours."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from harness.runs import guards
from harness.runs.compilation import compilation_guard
from harness.runs.guards import MachineWatch, _Usage, error_guard, outputs_guard, token_guard
from harness.vocabulary import GuardState, Outcome
from harness.workloads.model import TokenCounts
from harness.workloads.results import ScriptResult
from tests.runs.fake_bench import WORKLOAD


@pytest.fixture
def machine(monkeypatch):
    """A 2-core machine whose counters the test sets: (busy, stolen, ours) CPU seconds over a run of 10 s."""

    def over_10_s(busy: float, stolen: float, ours: float, available: int = 8 * 1024**3, swapped: int = 0):
        usages = iter([_Usage(0.0, 100.0, 1.0, 50.0, 7), _Usage(10.0, 100.0 + busy, 1.0 + stolen, 50.0 + ours, 7 + swapped)])
        monkeypatch.setattr(guards, "_usage", lambda: next(usages))
        monkeypatch.setattr(guards.os, "sched_getaffinity", lambda _pid: {0, 1})
        monkeypatch.setattr(guards.psutil, "virtual_memory", lambda: type("Memory", (), {"available": available}))
        return MachineWatch().readings()

    return over_10_s


def test_our_own_work_on_all_cores_is_no_load(machine):
    load, _ = machine(busy=20.0, stolen=0.0, ours=19.9)
    assert load.state is GuardState.PASSED
    assert "other processes 0.01 cores" in load.detail


def test_a_foreign_process_on_one_core_fires(machine):
    load, _ = machine(busy=20.0, stolen=0.0, ours=10.0)
    assert load.state is GuardState.FIRED
    assert "other processes 1.00 cores" in load.detail
    assert "limit 0.10 of 2 cores" in load.detail


def test_a_foreign_process_is_named():
    before = guards._usage()
    code = "import time\nwhile time.process_time() < 20: pass"
    # Not ours: its parent has ended, so it is adopted by init.
    launcher = (
        f"import subprocess, sys; "
        f"print(subprocess.Popen((sys.executable, '-c', {code!r}), stdout=subprocess.DEVNULL, start_new_session=True).pid)"
    )
    pid = int(subprocess.run((sys.executable, "-c", launcher), check=True, stdout=subprocess.PIPE, text=True).stdout)
    try:
        time.sleep(0.5)
        assert re.search(rf"\(pid {pid}\) [01]\.\d\d cores", guards.busiest(before, guards._usage()))
    finally:
        os.kill(pid, signal.SIGKILL)


def test_time_taken_by_the_hypervisor_fires(machine):
    load, _ = machine(busy=10.0, stolen=3.0, ours=10.0)
    assert load.state is GuardState.FIRED
    assert "the hypervisor 0.30 cores" in load.detail


def test_rounding_of_the_counters_is_no_negative_load(machine):
    assert "other processes 0.00 cores" in machine(busy=9.9, stolen=0.0, ours=10.0)[0].detail


def test_little_memory_and_swapping_fire(machine):
    assert machine(1, 0, 1)[1].state is GuardState.PASSED
    assert machine(1, 0, 1, available=512 * 1024**2)[1].state is GuardState.FIRED
    assert machine(1, 0, 1, swapped=1024**2)[1].state is GuardState.FIRED


def test_a_child_that_has_ended_still_counts_as_ours():
    before = guards._ours()
    start = time.process_time()
    code = "import time\nwhile time.process_time() < 0.4: pass"
    subprocess.run((sys.executable, "-c", code), check=True)
    assert guards._ours() - before >= 0.35 + (time.process_time() - start)


@pytest.mark.parametrize(
    ("failed", "completed", "state"),
    [(0, 16, GuardState.PASSED), (1, 15, GuardState.FIRED), (0, 0, GuardState.FIRED), (None, None, GuardState.ABSENT)],
)
def test_failed_requests(failed, completed, state):
    assert error_guard(ScriptResult(Outcome.OK, failed=failed, completed=completed)).state is state


@pytest.mark.parametrize(
    ("tokens", "total", "state"),
    [
        (TokenCounts(40, 80), 120, GuardState.PASSED),
        (TokenCounts(41, 80), 121, GuardState.FIRED),
        (TokenCounts(40, 79), 119, GuardState.FIRED),
        (None, 120, GuardState.PASSED),
        (None, 119, GuardState.FIRED),
        (None, None, GuardState.ABSENT),
    ],
)
def test_token_counts(tokens, total, state):
    assert token_guard(ScriptResult(Outcome.OK, tokens=tokens, tokens_total=total), WORKLOAD).state is state


def test_compilation_before_the_run_is_allowed(tmp_path):
    log = tmp_path / "log"
    log.write_text("INFO torch.compile takes 20 s in total\nready\n")
    assert compilation_guard(log, log.stat().st_size).state is GuardState.PASSED
    assert compilation_guard(log, 0).state is GuardState.FIRED


def test_a_log_that_cannot_be_read_leaves_the_guard_absent(tmp_path):
    assert compilation_guard(tmp_path / "none", 0).state is GuardState.ABSENT


def test_what_was_generated_is_recorded_and_never_voids():
    reading = outputs_guard(ScriptResult(Outcome.OK, completed=15, failed=1, outputs="ab" * 32))
    assert (reading.state, reading.detail) == (GuardState.PASSED, f"16 texts, sha256 {'ab' * 32}")


def test_a_script_that_keeps_no_text_leaves_the_reading_absent():
    assert outputs_guard(ScriptResult(Outcome.OK, completed=16, failed=0)).state is GuardState.ABSENT


def test_no_path_of_the_machine_is_in_a_reading(tmp_path):
    assert str(tmp_path) not in compilation_guard(tmp_path / "none", 0).detail
    log = tmp_path / "log"
    log.write_text(f"INFO torch.compile takes 20 s in total, saved to {tmp_path}/cache/graph\n")
    assert str(tmp_path) not in compilation_guard(log, 0).detail
    assert str(tmp_path) not in error_guard(ScriptResult(Outcome.OK, failed=1, completed=3, error=f"no {tmp_path}/x")).detail
