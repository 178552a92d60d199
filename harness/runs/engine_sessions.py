"""Sessions of an engine's script: a server that stays up with a client for each run, or fresh processes for each run."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import RunError
from harness.progress import duration
from harness.runs.client import Client
from harness.runs.compilation import CacheWatch, compilation_guard, window_guard
from harness.runs.counters import cache_guard, counted_guard, read_counters
from harness.runs.engine_calls import EngineCalls
from harness.runs.model import GuardReading, RunRequest, RunResult
from harness.runs.process import make_folder, run_logged
from harness.runs.server import Server, ServerFailure
from harness.vocabulary import Engine, Guard, GuardState, Outcome, Slot
from harness.workloads.model import Script
from harness.workloads.scripts import client_module

__all__ = ["FreshSession", "LiveSession", "failed"]

# How long after a failed run its server may take to end, if that was the reason.
_DYING_S = 2.0
# Makes the script's process import all that it needs and end at once.
_IMPORTING = {Engine.VLLM: ("bench", "serve", "--help"), Engine.SGLANG: ("--help",)}


def failed(failure: ServerFailure) -> RunResult:
    return RunResult(failure.outcome, detail=failure.detail, log=failure.log)


def _stricter(script: GuardReading, server: GuardReading) -> GuardReading:
    """The server's count, unless only the script's is wrong."""
    return script if script.state is GuardState.FIRED and server.state is GuardState.PASSED else server


def _finished(result: RunResult, guards: list[GuardReading], start: float) -> RunResult:
    return replace(result, guards=tuple(guards), seconds=time.monotonic() - start)


@dataclass(slots=True)
class LiveSession:
    """A server that is up and a client that has the script imported; each run is one fork of the client."""

    calls: EngineCalls
    slot: Slot
    directory: Path
    server: Server | None = None
    client: Client | None = None

    def start(self) -> None:
        """Start both processes without waiting. Raises RunError when the port is in use."""
        self.server = self.calls.start_server(self.slot, self.directory)
        try:
            self.client = Client(
                self.calls.arms[self.slot].command,
                environment=self.calls.environment(self.slot, self.directory),
                directory=self.directory,
                module=client_module(self.calls.workload.engine, self.calls.arms[self.slot].trees),
                importing=_IMPORTING[self.calls.workload.engine],
            )
        except BaseException:
            self.server.stop()
            raise

    @property
    def log(self) -> Path:
        """The server's log."""
        return self._both()[0].log

    def poll_ready(self) -> bool:
        """Whether both are up. Raises ServerFailure, with both stopped, when one is not going to be."""
        server, client = self._both()
        limit_s = self.calls.workload.start_timeout_s
        try:
            if not (server.ready or server.poll_ready(limit_s)) or not (client.ready or client.poll_ready(limit_s)):
                return False
        except BaseException:
            self.close()
            raise
        self.calls.progress.say(f"{self.slot} server up on port {server.port} after {duration(server.start_seconds)}")
        return True

    def run(self, request: RunRequest) -> RunResult:
        server, client = self._both()
        make_folder(request.directory)
        start = time.monotonic()
        counters = self.calls.scripts.counters
        try:
            server.check()
            before = read_counters(server.metrics())
            caches = CacheWatch(self.calls.arms[self.slot].variables)
            offset = server.log.stat().st_size
            command = self.calls.script(request, server)
            watch = self.calls.watch_of()
            end = client.run(
                # Behind "-m MODULE", which the client has imported.
                command[2:],
                directory=request.directory,
                log=request.directory / "script.log",
                timeout_s=self.calls.workload.run_timeout_s,
            )
            machine = watch.readings()
            result, guards, said = self.calls.judge(end, request.directory)
            # A client whose server died ends with an error of its own; the server's is the one that tells.
            server.check(within_s=0.0 if result.outcome is Outcome.OK else _DYING_S)
        except ServerFailure as failure:
            return _finished(failed(failure), [], start)
        guards += machine
        if said is not None:
            after = read_counters(server.metrics())
            guards.append(cache_guard(said, counters, before, after))
            counted = counted_guard(self.calls.workload, counters, before, after)
            if counted is not None:
                guards = [_stricter(one, counted) if one.guard is Guard.TOKENS else one for one in guards]
        guards.append(compilation_guard(server.log, offset, caches))
        guards.append(self.calls.modules(self.slot, self.directory))
        return _finished(result, guards, start)

    def _both(self) -> tuple[Server, Client]:
        if self.server is None or self.client is None:
            raise RunError(f"the session of the {self.slot} arm was not started")
        return self.server, self.client

    def close(self) -> None:
        if self.client is not None:
            self.client.stop()
        if self.server is not None:
            self.server.stop()


@dataclass(slots=True)
class FreshSession:
    """Nothing is kept: each run has its own process, for serve its own server too."""

    calls: EngineCalls
    slot: Slot

    def run(self, request: RunRequest) -> RunResult:
        make_folder(request.directory)
        start = time.monotonic()
        if self.calls.workload.script is not Script.SERVE:
            return self._script(request, None, start)
        server = self.calls.start_server(self.slot, request.directory)
        try:
            server.wait_ready(self.calls.workload.start_timeout_s)
            result = self._script(request, server, start)
            server.check(within_s=0.0 if result.outcome is Outcome.OK else _DYING_S)
        except ServerFailure as failure:
            return _finished(failed(failure), [], start)
        finally:
            server.stop()
        return result

    def _script(self, request: RunRequest, server: Server | None, start: float) -> RunResult:
        command = self.calls.arms[self.slot].command(*self.calls.script(request, server))
        watch = self.calls.watch_of()
        end = run_logged(
            command,
            environment=self.calls.environment(self.slot, request.directory),
            directory=request.directory,
            log=request.directory / "script.log",
            timeout_s=self.calls.workload.run_timeout_s,
        )
        machine = watch.readings()
        result, guards, said = self.calls.judge(end, request.directory)
        guards += machine
        if server is not None and said is not None:
            guards.append(cache_guard(said, self.calls.scripts.counters, {}, read_counters(server.metrics())))
        elif server is None and said is not None:
            guards.append(window_guard(end.log, self.calls.scripts.measuring))
        guards.append(self.calls.modules(self.slot, request.directory))
        return _finished(result, guards, start)

    def close(self) -> None:
        return
