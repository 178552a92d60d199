"""Starts a process with a log and a time limit, and stops it with everything that it started.

Each command runs under harness/runs/supervisor.py in a session of its own: a Ctrl-C in the terminal reaches the harness
alone, which then stops its commands; and when the harness is killed, the supervisor still does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from harness.errors import RunError

__all__ = ["LOG_LIMIT", "OWNER_VARIABLE", "Child", "End", "make_folder", "oom_kills", "run_logged", "stop_orphans"]

# Every process of a run carries "<pid>:<start time>" of the harness that started it, so that a later one can tell orphans.
OWNER_VARIABLE = "UPKERNEL_OWNER"
# Bytes of log above which its middle is dropped.
LOG_LIMIT = 32 * 1024 * 1024
_LOG_HEAD = 1024 * 1024
_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_POLL_S = 0.25
_VMSTAT = Path("/proc/vmstat")
# How long a supervisor may need beyond the grace to kill and reap its tree.
_KILL_S = 10.0


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended. `code` is negative for a signal, as in subprocess."""

    code: int
    timed_out: bool
    seconds: float
    log: Path
    # Processes that the kernel killed for want of memory, machine-wide, while this one ran; None where it does not tell.
    oom_kills: int | None


def _owner() -> str:
    return f"{os.getpid()}:{psutil.Process().create_time():.2f}"


def oom_kills(before: int | None = 0) -> int | None:
    """Processes that the kernel killed for want of memory since its counter stood at `before` (0: since boot).

    None where the kernel does not tell, now or then.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in _VMSTAT.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and before is not None:
                return int(value) - before
    return None


def make_folder(folder: Path) -> None:
    """Make a run's folder with its parents; one that is there is kept. Raises RunError (disk full, no permission)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot make {folder}: {error.strerror or error}. What has finished is kept: make room, or make the folder "
            "writable, and resume."
        ) from error


class Child:
    """A supervised process. Start it in a thread that lives as long as it should: its parent's end is its own."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: Path,
        log: Path,
        grace_s: float = 10.0,
        keep_open: tuple[int, ...] = (),
    ) -> None:
        """`directory` is the working directory; `log` gets stdout and stderr.

        `keep_open` are descriptors that the command inherits. Raises RunError when the log or folder cannot be used.
        """
        make_folder(log.parent)
        self.log = log
        self._grace_s = grace_s
        self._start = time.monotonic()
        self._oom_before = oom_kills()
        supervisor = (sys.executable, "-I", "-S", str(_SUPERVISOR), str(os.getpid()), str(grace_s))
        try:
            # Append mode: after the log is cut the process goes on writing at its new end.
            with log.open("ab") as stream:
                self._process = subprocess.Popen(
                    (*supervisor, *command),
                    env={**environment, OWNER_VARIABLE: _owner()},
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=keep_open,
                )
        except OSError as error:
            raise RunError(f"cannot start {command[0]} in {directory} with log {log}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return self._process.pid

    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout_s: float, *, until: Callable[[], bool] | None = None) -> End | None:
        """Wait for the end; a time-out stops the process. With `until`, return None as soon as that is true.

        Any exception, KeyboardInterrupt above all, stops the process before it goes on its way.
        """
        deadline = self._start + timeout_s
        try:
            while self._process.poll() is None:
                if until is not None and until():
                    return None
                if time.monotonic() > deadline:
                    self.stop()
                    return self._end(timed_out=True)
                self.cut_log()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_POLL_S)
        except BaseException:
            self.stop()
            raise
        return self._end(timed_out=False)

    def stop(self) -> None:
        """Stop the whole tree: SIGTERM, then SIGKILL after the grace. Safe to call twice; ends when nothing is left."""
        if self._process.poll() is not None:
            return
        below = _tree(self.pid)
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(self._grace_s + _KILL_S)
        except subprocess.TimeoutExpired:
            # The supervisor itself hangs or was stopped.
            for one in (*below, *_tree(self.pid)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            self._process.kill()
            self._process.wait()

    def cut_log(self, limit: int = LOG_LIMIT) -> None:
        """Keep a log that has grown beyond the limit (bytes) to its beginning and what comes from now on.

        Raises RunError when the log is gone or cannot be written.
        """
        try:
            size = self.log.stat().st_size
            if size > limit:
                head = min(_LOG_HEAD, limit // 2)
                os.truncate(self.log, head)
                with self.log.open("ab") as stream:
                    stream.write(f"\n[upkernel: {size - head} bytes of log dropped here, the limit is {limit}]\n".encode())
        except OSError as error:
            raise RunError(f"cannot keep the log {self.log}: {error.strerror or error}. Finished runs are kept.") from error

    def _end(self, *, timed_out: bool) -> End:
        return End(
            code=self._process.wait(),
            timed_out=timed_out,
            seconds=time.monotonic() - self._start,
            log=self.log,
            oom_kills=oom_kills(self._oom_before),
        )


def run_logged(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: Path,
    log: Path,
    timeout_s: float,
    grace_s: float = 10.0,
) -> End:
    """Run a command to its end, or to the time limit."""
    with Child(command, environment=environment, directory=directory, log=log, grace_s=grace_s) as child:
        end = child.wait(timeout_s)
    if end is None:
        raise AssertionError("wait without a condition returns an end")
    return end


def _tree(pid: int) -> tuple[psutil.Process, ...]:
    try:
        return tuple(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return ()


def stop_orphans() -> tuple[str, ...]:
    """Kill what a harness that is gone has left behind; returns a description of each process for the user.

    The supervisor normally sees to it, so there is something here only when both were killed at once.
    """
    found = []
    for process in psutil.process_iter():
        try:
            owner = process.environ().get(OWNER_VARIABLE, "")
            if owner and not _alive(owner):
                found.append(f"process {process.pid} ({' '.join(process.cmdline())[:80]})")
                process.kill()
        except (psutil.Error, OSError):
            # It ended meanwhile, or belongs to another user.
            continue
    return tuple(found)


def _alive(owner: str) -> bool:
    pid, _, started = owner.partition(":")
    try:
        return abs(psutil.Process(int(pid)).create_time() - float(started)) < 1.0
    except (psutil.Error, ValueError):
        return False
