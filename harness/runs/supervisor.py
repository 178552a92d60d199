"""Runs one command and sees that nothing of it outlives the harness. Executed as a script with a bare interpreter.

The kernel sends this process SIGTERM when the harness dies, however it dies. As the subreaper of everything below it, it
then finds every descendant, also those whose parents are gone (an engine core whose API server was killed), and kills them.
It ends as the command ended: same exit code, or the same signal.

Usage: python -I -S supervisor.py PARENT_PID GRACE_SECONDS COMMAND...
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05
# What a helper process of a command that has ended gets to end by itself (multiprocessing's resource tracker needs a moment).
_STRAGGLERS_S = 2.0


class _StopRequested(Exception):  # noqa: N818 -- a request, not an error
    """The harness asks for the end, or is gone."""


def _on_stop(_signum: int, _frame: FrameType | None) -> None:
    # One request is enough; more must not interrupt the cleaning up.
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, signal.SIG_IGN)
    raise _StopRequested


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl")


def _descendants() -> list[int]:
    """Every process below this one, from /proc (psutil is not there under -I -S)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name in parentheses may hold anything; the parent's id is the second field after it.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _signal(processes: list[int], number: signal.Signals) -> None:
    for one in processes:
        try:
            os.kill(one, number)
        except ProcessLookupError:
            continue


def _reap() -> None:
    """Take the exit status of every child that has ended, adopted ones included."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def _stop_all(first: list[int], grace_s: float) -> None:
    """SIGTERM to the command, which may tell its children; after the grace SIGKILL to what is left, until nothing is."""
    _signal(first, signal.SIGTERM)
    told_all = False
    deadline = time.monotonic() + grace_s
    while True:
        _reap()
        left = _descendants()
        if not left:
            return
        if time.monotonic() > deadline:
            _signal(left, signal.SIGKILL)
        elif first and not told_all and not set(first) & set(left):
            # The command is gone and has left these to nobody.
            _signal(left, signal.SIGTERM)
            told_all = True
        time.sleep(_POLL_S)


def _end_like(status: int) -> None:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def main() -> None:
    parent, grace_s, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    signal.signal(signal.SIGTERM, _on_stop)
    signal.signal(signal.SIGINT, _on_stop)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        # The harness died before the kernel knew that we want to hear of it.
        os._exit(1)
    child = -1
    try:
        child = os.posix_spawnp(command[0], command, os.environ, setsigdef=[signal.SIGTERM, signal.SIGINT])
        while True:
            ended, status = os.waitpid(-1, 0)
            if ended == child:
                break
        # The command is over; nothing that it started may run into the next run.
        _stop_all([], _STRAGGLERS_S)
    except _StopRequested:
        _stop_all([child] if child > 0 else [], grace_s)
        os._exit(128 + signal.SIGTERM)
    except OSError as error:
        print(f"cannot start {command[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(127)
    _end_like(status)


main()
