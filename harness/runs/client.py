"""The client of a live session: one process with the script imported, which forks for each run (client_host.py says why)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.runs.process import Child, End, oom_kills
from harness.runs.server import ServerFailure, failure_of

__all__ = ["Client"]

_HOST = Path(__file__).with_name("client_host.py")
_POLL_S = 0.25


class Client:
    """`command` gives the argument vector that runs Python with some arguments in the arm's environment."""

    def __init__(
        self,
        command: Callable[..., Sequence[str]],
        *,
        environment: Mapping[str, str],
        directory: Path,
        module: str,
        importing: Sequence[str] = (),
        host: Path = _HOST,
    ) -> None:
        """Starts importing and returns at once; `poll_ready` is next.

        `importing` are the arguments that make the script `module` import all that it needs, and end.
        """
        their_requests, self._requests = os.pipe()
        self._replies, their_replies = os.pipe()
        self._buffer = b""
        self.ready = False
        self._start = time.monotonic()
        try:
            self._child = Child(
                command(str(host), str(their_requests), str(their_replies), module, *importing),
                environment=environment,
                directory=directory,
                log=directory / "client.log",
                keep_open=(their_requests, their_replies),
            )
        except BaseException:
            self._close()
            raise
        finally:
            os.close(their_requests)
            os.close(their_replies)

    def poll_ready(self, timeout_s: float) -> bool:
        """Whether the script is imported. Raises ServerFailure when it has ended or its time (from the start) is over."""
        if self._reply(0.0) is not None:
            self.ready = True
            return True
        late = time.monotonic() - self._start > timeout_s
        if late or not self._child.running():
            end = self._child.wait(0.0)
            self.stop()
            if end is not None:
                raise failure_of(end, "the client", "while it started")
        return False

    def run(self, arguments: Sequence[str], *, directory: Path, log: Path, timeout_s: float) -> End:
        """Run `python -m MODULE ARGUMENTS` to its end, or to the time limit, in `directory` with its output in `log`."""
        start = time.monotonic()
        request = {"arguments": list(arguments), "directory": str(directory), "log": str(log)}
        kills, timed_out = oom_kills(), False
        try:
            os.write(self._requests, (json.dumps(request) + "\n").encode())
            pid = self._answer("pid")
            while (answer := self._reply(_POLL_S)) is None:
                if not timed_out and time.monotonic() - start > timeout_s:
                    timed_out = True
                    os.kill(pid, signal.SIGKILL)
                self._check()
            code = int(answer["code"])
        except BrokenPipeError as error:
            raise self._died() from error
        except BaseException:
            self.stop()
            raise
        return End(code=code, timed_out=timed_out, seconds=time.monotonic() - start, log=log, oom_kills=oom_kills(kills))

    def _check(self) -> None:
        if not self._child.running():
            raise self._died()

    def _died(self) -> ServerFailure:
        end = self._child.wait(0.0)
        self.stop()
        if end is None:
            raise AssertionError("wait without a condition returns an end")
        return failure_of(end, "the client's process", "during a run")

    def _answer(self, key: str) -> int:
        while (answer := self._reply(_POLL_S)) is None:
            self._check()
        return int(answer[key])

    def _reply(self, timeout_s: float) -> dict[str, Any] | None:
        """The next line of the host, or None when there is none within the time."""
        if b"\n" not in self._buffer and select.select([self._replies], [], [], timeout_s)[0]:
            self._buffer += os.read(self._replies, 65536)
        line, end, rest = self._buffer.partition(b"\n")
        if not end:
            return None
        self._buffer = rest
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _close(self) -> None:
        for descriptor in (self._requests, self._replies):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._requests = self._replies = -1

    def stop(self) -> None:
        """Stop it with what it runs. Safe to call twice."""
        self._child.stop()
        self._close()
