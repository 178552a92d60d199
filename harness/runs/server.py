"""A server on loopback: its port, its start, its health, its end."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from harness.errors import RunError
from harness.runs.outcomes import classify, describe, failure_text
from harness.runs.process import Child, End
from harness.vocabulary import Outcome
from harness.workloads.vllm_commands import LOOPBACK

__all__ = ["POLL_S", "Server", "ServerFailure", "failure_of", "reserve_port"]

# Seconds between two looks at a server that is starting, and for one answer of /health.
POLL_S = 0.25
_ANSWER_S = 5.0
# vLLM ends within about 2 s of SIGTERM when it is idle.
_GRACE_S = 10.0


class ServerFailure(Exception):  # noqa: N818 -- carries the outcome of a start; never leaves harness.runs
    """A server, or a live client, that did not come up or did not stay up, with what a run result needs."""

    def __init__(self, outcome: Outcome, detail: str, log: Path) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail
        self.log = log


def reserve_port(port: int | None = None) -> socket.socket:
    """A socket bound to the port (None: any free one) that is never listened on; keep it open as long as the server lives.

    vLLM binds with SO_REUSEPORT and SGLang with SO_REUSEADDR, so both can share the port with this socket, and what does
    neither cannot take it between our choice and their start. Raises RunError, with the holder where the system tells it,
    when the port is in use.
    """
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A plain bind first: with SO_REUSEPORT it would succeed beside another server of the same kind.
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port or 0))
            chosen = probe.getsockname()[1]
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((LOOPBACK, chosen))
    except OSError as error:
        reserved.close()
        wanted = f"port {port} on {LOOPBACK}" if port else f"a free port on {LOOPBACK}"
        raise RunError(
            f"{wanted} cannot be had: {error.strerror}{_holder(port)}; stop what uses it or ask for another"
        ) from error
    return reserved


def _holder(port: int | None) -> str:
    if port is None:
        return ""
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp4"):
            if one.laddr and one.laddr.port == port and one.status == psutil.CONN_LISTEN and one.pid:
                command = " ".join(psutil.Process(one.pid).cmdline())
                return f", process {one.pid} ({command[:80]}) listens there"
    return ""


class Server:
    """One supervised server. `command` gets the port and gives the argument vector."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        *,
        environment: Mapping[str, str],
        directory: Path,
        port: int | None = None,
    ) -> None:
        """Starts it and returns at once; `wait_ready` is next. Raises RunError when the port is in use."""
        self._reserved = reserve_port(port)
        self.port: int = self._reserved.getsockname()[1]
        try:
            self._child = Child(
                command(self.port),
                environment=environment,
                directory=directory,
                log=directory / "server.log",
                grace_s=_GRACE_S,
            )
        except BaseException:
            self._reserved.close()
            raise
        self._start = time.monotonic()
        self.start_seconds = 0.0
        self.ready = False

    @property
    def log(self) -> Path:
        return self._child.log

    def poll_ready(self, timeout_s: float) -> bool:
        """Whether /health answers 200 now. The time-out counts from the start.

        Raises ServerFailure when the server has ended or its time is over; it is stopped then.
        """
        self.check()
        if self._healthy():
            self.start_seconds = time.monotonic() - self._start
            self.ready = True
            return True
        if time.monotonic() - self._start > timeout_s:
            end = self._child.wait(0.0)
            self.stop()
            if end is not None:
                raise failure_of(end, "the server", "while it started")
        return False

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until /health answers 200. Raises ServerFailure as `poll_ready` does."""
        try:
            while not self.poll_ready(timeout_s):
                time.sleep(POLL_S)
        except BaseException:
            self.stop()
            raise

    def check(self, within_s: float = 0.0) -> None:
        """Raises ServerFailure when the server has ended meanwhile, or ends within the time (its end takes a moment)."""
        deadline = time.monotonic() + within_s
        while self._child.running() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if not self._child.running():
            end = self._child.wait(0.0)
            self.stop()
            if end is not None:
                raise failure_of(end, "the server", "while it should have served" if self.ready else "while it started")
        self._child.cut_log()

    def _healthy(self) -> bool:
        return self._get("/health") is not None

    def metrics(self) -> str:
        """What /metrics says now, in Prometheus' text format; "" when it does not answer."""
        return self._get("/metrics/") or self._get("/metrics") or ""

    def _get(self, path: str) -> str | None:
        """The body of an answer with status 200, else None."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=_ANSWER_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode("utf-8", errors="replace")
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return body if answer.status == http.client.OK else None

    def stop(self) -> None:
        """Stop it and everything below it, and free the port. Safe to call twice."""
        self._child.stop()
        self._reserved.close()


def failure_of(end: End, what: str, when: str) -> ServerFailure:
    """The failure of a process that should have gone on: it has failed whatever its exit code."""
    outcome = classify(end)
    if outcome is Outcome.OK:
        outcome = Outcome.CRASHED
    return ServerFailure(outcome, failure_text(f"{what} ended {when}: {describe(end)}", end), end.log)
