"""Exit codes and logs become outcomes."""

from __future__ import annotations

import signal

import pytest

from harness.runs.outcomes import classify, describe, failure_text, meaningful_lines, without_paths
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


def test_the_last_line_of_an_explanation_says_what_and_why(end):
    text = "INFO starting\nTraceback (most recent call last):\nValueError: too short\nINFO goodbye\n"
    assert failure_text("the server ended", end(1, text)).splitlines() == [
        "INFO starting",
        "Traceback (most recent call last):",
        "ValueError: too short",
        "INFO goodbye",
        "the server ended: ValueError: too short",
    ]


def test_the_engine_core_tells_the_cause_where_the_api_server_only_points_to_it(end):
    cause = "(EngineCore_DP0 pid=31) ERROR 12-01 18:00:00 [core.py:1000] ValueError: the cache is too small"
    text = f"{cause}\n(APIServer pid=12) RuntimeError: Engine core initialization failed. See root cause above.\n"
    assert failure_text("the server ended", end(1, text)).splitlines()[-1] == f"the server ended: {cause}"
    alone = "RuntimeError: Engine core initialization failed. See root cause above."
    assert failure_text("the server ended", end(1, alone)).splitlines()[-1] == f"the server ended: {alone}"


def test_what_a_process_says_while_it_is_stopped_is_not_why_it_was_late(end):
    text = "loading weights\nKeyboardInterrupt\n"
    assert failure_text("stopped at the limit", end(-15, text, timed_out=True)).splitlines()[-1] == "stopped at the limit"


def test_an_explanation_without_a_log_is_one_line(end):
    assert failure_text("killed by SIGKILL", end(-9)) == "killed by SIGKILL"


def test_a_long_reason_is_cut_in_the_last_line_alone(end):
    lines = failure_text("failed", end(1, f"ValueError: {'x' * 500}")).splitlines()
    assert (len(lines[0]), lines[1]) == (512, f"failed: ValueError: {'x' * 188}...")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ('File "/home/anna/state/trees/vllm/v1/core.py", line 3', 'File ".../vllm/v1/core.py", line 3'),
        ("PATH=/usr/lib/ab:/home/anna/bin", "PATH=.../ab:.../bin"),
        ("cannot open /tmp/log.txt: no space", "cannot open .../log.txt: no space"),
        (
            "GET /health and /v1/completions, http://127.0.0.1:8000/tmp/x",
            "GET /health and /v1/completions, http://127.0.0.1:8000/tmp/x",
        ),
        ("12 tokens/s, 3/4 done, vllm/v1/core.py", "12 tokens/s, 3/4 done, vllm/v1/core.py"),
    ],
)
def test_paths_of_the_machine_are_cut_and_nothing_else(text, short):
    assert without_paths(text) == short


def test_no_path_of_the_machine_is_in_an_explanation(end, tmp_path):
    text = f'File "{tmp_path}/vllm/core.py", line 3\nFileNotFoundError: {tmp_path}/model/config.json\n'
    assert str(tmp_path) not in failure_text(f"cannot read {tmp_path}", end(1, text))
