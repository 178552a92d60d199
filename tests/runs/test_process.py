"""Processes are stopped with all that they started, whoever dies first."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from harness.errors import RunError
from harness.runs import process
from harness.runs.process import OWNER_VARIABLE, Child, End, make_folder, oom_kills, run_logged, stop_orphans

REPOSITORY = Path(__file__).resolve().parents[2]

# Starts a grandchild that ignores SIGTERM, writes both ids, then goes on for ever.
FAMILY = """
import os, signal, subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
with open("ids.tmp", "w") as stream:
    stream.write(f"{os.getpid()} {child.pid}")
os.rename("ids.tmp", "ids")
time.sleep(600)
"""


def start(tmp_path: Path, code: str, grace_s: float = 0.3) -> Child:
    return Child(
        (sys.executable, "-c", textwrap.dedent(code)),
        environment=dict(os.environ),
        directory=tmp_path,
        log=tmp_path / "log",
        grace_s=grace_s,
    )


def run(tmp_path: Path, code: str, timeout_s: float = 20.0) -> End:
    with start(tmp_path, code) as child:
        end = child.wait(timeout_s)
    assert end is not None
    return end


def family(tmp_path: Path, timeout_s: float = 10.0) -> tuple[int, ...]:
    deadline = time.monotonic() + timeout_s
    while not (tmp_path / "ids").exists():
        assert time.monotonic() < deadline, "the family did not start"
        time.sleep(0.02)
    return tuple(int(one) for one in (tmp_path / "ids").read_text().split())


def gone(pid: int, timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_output_and_exit_code_are_kept(tmp_path):
    end = run(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert end.code == 7
    assert not end.timed_out
    assert sorted(end.log.read_text().split()) == ["err", "out"]


def test_a_signal_is_reported_as_that_signal(tmp_path):
    end = run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert end.code == -signal.SIGSEGV


def test_sigkill_of_the_command_is_reported(tmp_path):
    assert run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)").code == -signal.SIGKILL


def test_a_command_that_does_not_exist_is_a_failed_run_with_the_reason(tmp_path):
    end = run_logged(("/no/such/python", "-V"), environment={}, directory=tmp_path, log=tmp_path / "log", timeout_s=10.0)
    assert end.code == 127
    assert "cannot start /no/such/python" in end.log.read_text()


def test_a_working_directory_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(RunError, match="no-such-folder"):
        Child((sys.executable, "-V"), environment={}, directory=tmp_path / "no-such-folder", log=tmp_path / "log")


def test_a_hanging_family_is_killed_at_the_time_limit(tmp_path):
    with start(tmp_path, FAMILY) as child:
        ids = family(tmp_path)
        end = child.wait(0.2)
    assert end is not None
    assert end.timed_out
    assert all(gone(pid, 0.0) or gone(pid) for pid in ids)


def test_stop_returns_when_nothing_is_left(tmp_path):
    child = start(tmp_path, FAMILY)
    ids = family(tmp_path)
    child.stop()
    assert not any(psutil.pid_exists(pid) for pid in ids)
    child.stop()


def test_a_grandchild_does_not_outlive_its_command(tmp_path):
    code = FAMILY.replace("time.sleep(600)\n", "os._exit(3)\n")
    end = run(tmp_path, code)
    assert end.code == 3
    assert all(gone(pid, 0.5) for pid in family(tmp_path))


def test_the_command_gets_its_grace(tmp_path):
    code = """
    import signal, sys, time
    def leave(*_):
        print("goodbye", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, leave)
    print("ready", flush=True)
    time.sleep(600)
    """
    child = start(tmp_path, code, grace_s=10.0)
    assert child.wait(20.0, until=lambda: "ready" in (tmp_path / "log").read_text()) is None
    child.stop()
    assert "goodbye" in (tmp_path / "log").read_text()


def test_an_interrupt_in_the_harness_stops_the_run_and_goes_on(tmp_path):
    child = start(tmp_path, FAMILY)
    ids = family(tmp_path)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        child.wait(30.0)
    assert not any(psutil.pid_exists(pid) for pid in ids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_harness_leaves_nothing_behind(tmp_path, number):
    harness = f"""
    import os, sys
    from pathlib import Path
    from harness.runs.process import Child
    here = Path({str(tmp_path)!r})
    command = (sys.executable, "-c", {FAMILY!r})
    child = Child(command, environment=dict(os.environ), directory=here, log=here / "log", grace_s=0.3)
    child.wait(600)
    """
    parent = subprocess.Popen((sys.executable, "-c", textwrap.dedent(harness)), cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    ids = family(tmp_path)
    parent.send_signal(number)
    parent.wait()
    assert all(gone(pid) for pid in ids)


def test_a_killed_supervisor_leaves_orphans_that_the_next_harness_stops(tmp_path):
    harness = f"""
    import os, signal, sys, time
    from pathlib import Path
    from harness.runs.process import Child
    here = Path({str(tmp_path)!r})
    child = Child((sys.executable, "-c", {FAMILY!r}), environment=dict(os.environ), directory=here, log=here / "log")
    while not (here / "ids").exists():
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run((sys.executable, "-c", textwrap.dedent(harness)), cwd=REPOSITORY, check=False)
    ids = family(tmp_path)
    assert all(psutil.pid_exists(pid) for pid in ids)
    found = stop_orphans()
    assert all(any(f"process {pid} " in one for one in found) for pid in ids)
    assert all(gone(pid) for pid in ids)


def test_the_runs_of_a_living_harness_are_no_orphans(tmp_path):
    with start(tmp_path, FAMILY):
        ids = family(tmp_path)
        assert not any(f"process {pid} " in one for one in stop_orphans() for pid in ids)
        assert psutil.Process(ids[0]).environ()[OWNER_VARIABLE].startswith(f"{os.getpid()}:")
        assert all(psutil.pid_exists(pid) for pid in ids)


def test_a_log_without_end_is_cut(tmp_path):
    with start(
        tmp_path,
        "import time\nfor i in range(20000): print('line', i, flush=False)\nprint('last', flush=True)\ntime.sleep(600)",
    ) as child:
        child.wait(20.0, until=lambda: "last" in (tmp_path / "log").read_text())
        child.cut_log(limit=1000)
        text = (tmp_path / "log").read_text()
        assert len(text) < 1000
        assert text.startswith("line 0\n")
        assert "bytes of log dropped here" in text


def test_what_is_written_after_the_cut_is_kept(tmp_path):
    code = """
    import os, time
    print("x" * 5000, flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
    print("after", flush=True)
    """
    with start(tmp_path, code) as child:
        child.wait(20.0, until=lambda: (tmp_path / "log").stat().st_size > 5000)
        child.cut_log(limit=1000)
        (tmp_path / "go").touch()
        child.wait(20.0)
    assert (tmp_path / "log").read_text().endswith("\nafter\n")
    assert (tmp_path / "log").stat().st_size < 1000


def test_kills_for_want_of_memory_are_counted_from_a_moment_on(tmp_path, monkeypatch):
    counter = tmp_path / "vmstat"
    monkeypatch.setattr(process, "_VMSTAT", counter)
    counter.write_text("pgfault 12\noom_kill 7\nswap_ra 3\n")
    assert oom_kills() == 7
    assert oom_kills(5) == 2
    assert oom_kills(None) is None
    counter.write_text("pgfault 12\n")
    assert oom_kills(5) is None
    counter.unlink()
    assert oom_kills(5) is None


def test_a_folder_that_cannot_be_made_says_why_and_what_to_do(tmp_path, monkeypatch):
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(RunError, match=rf"cannot make {tmp_path}/1: No space left on device\. .* make room.* and resume"):
        make_folder(tmp_path / "1")


def test_a_log_that_is_gone_is_an_error_and_the_process_is_stopped(tmp_path):
    child = start(tmp_path, FAMILY)
    ids = family(tmp_path)
    (tmp_path / "log").unlink()
    with pytest.raises(RunError, match=r"cannot keep the log .*/log: No such file"):
        child.wait(20.0)
    assert not any(psutil.pid_exists(pid) for pid in ids)
