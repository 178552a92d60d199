"""Exit codes and logs become outcomes."""

from __future__ import annotations

import signal

import pytest

from harness.runs.outcomes import classify, describe, meaningful_lines
from harness.runs.process import End
from harness.vocabulary import Outcome


@pytest.fixture
def end(tmp_path):
    def made(code: int, text: str = "", *, timed_out: bool = False, oom_kills: int | None = 0) -> End:
        log = tmp_path / "log"
        log.write_text(text)
        return End(code=code, timed_out=timed_out, seconds=1.25, log=log, oom_kills=oom_kills)

    return made


@pytest.mark.parametrize(
    ("code", "text", "outcome"),
    [
        (0, "RuntimeError that was caught", Outcome.OK),
        (1, "RuntimeError: broken", Outcome.CRASHED),
        (-signal.SIGSEGV, "", Outcome.CRASHED),
        (-signal.SIGKILL, "", Outcome.CRASHED),
        (-signal.SIGINT, "", Outcome.INTERRUPTED),
        (130, "KeyboardInterrupt", Outcome.INTERRUPTED),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", Outcome.OUT_OF_MEMORY),
        (1, "MemoryError", Outcome.OUT_OF_MEMORY),
        (1, "OSError: [Errno 12] Cannot allocate memory", Outcome.OUT_OF_MEMORY),
        (1, "RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory", Outcome.OUT_OF_MEMORY),
        (-signal.SIGABRT, "terminate called after throwing an instance of 'std::bad_alloc'", Outcome.OUT_OF_MEMORY),
        (1, "ValueError: No available memory for the cache blocks.", Outcome.OUT_OF_MEMORY),
    ],
)
def test_exit_code_and_log_decide(end, code, text, outcome):
    assert classify(end(code, text)) is outcome


def test_a_kill_is_out_of_memory_only_when_the_kernel_counted_one(end):
    assert classify(end(-signal.SIGKILL, oom_kills=1)) is Outcome.OUT_OF_MEMORY
    assert classify(end(-signal.SIGKILL, oom_kills=None)) is Outcome.CRASHED


def test_a_good_run_stays_good_when_the_kernel_killed_something_else(end):
    assert classify(end(0, oom_kills=1)) is Outcome.OK


def test_the_time_limit_wins_over_the_signal_that_enforced_it(end):
    assert classify(end(-signal.SIGKILL, "MemoryError", timed_out=True)) is Outcome.TIMED_OUT


def test_description(end):
    assert describe(end(3)) == "exit code 3 after 1.2 s"
    assert describe(end(-signal.SIGSEGV)) == "killed by SIGSEGV after 1.2 s"
    assert describe(end(-9, timed_out=True)) == "stopped at the time limit after 1.2 s"


def test_progress_bars_and_rules_are_left_out(end):
    text = "RuntimeError: broken\n" + "  45%|####      | 9/20 [00:01<00:02]\r 50%|#####     | 10/20 [00:01<00:02]\n=======\n\n"
    assert meaningful_lines(end(1, text).log) == "RuntimeError: broken"


def test_the_first_error_is_shown_when_it_lies_far_above_the_end(end):
    text = "ValueError: the cause\n" + "".join(f"shutting down {i}\n" for i in range(50))
    assert meaningful_lines(end(1, text).log, count=2) == "ValueError: the cause\n...\nshutting down 48\nshutting down 49"


def test_a_log_that_is_not_there_has_no_lines(tmp_path):
    assert meaningful_lines(tmp_path / "none") == ""
