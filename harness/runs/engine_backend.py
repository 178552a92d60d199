"""Runs an engine's own benchmark scripts on the arms of an experiment, against live servers or in fresh processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from harness.arms.model import Arm
from harness.arms.modules import check_modules
from harness.arms.variables import RECORD_VARIABLE, arm_environment
from harness.errors import RunError
from harness.progress import Progress, duration
from harness.runs.client import Client
from harness.runs.compilation import CacheWatch, compilation_guard, window_guard
from harness.runs.counters import cache_guard, counted_guard, read_counters
from harness.runs.guards import MachineWatch, error_guard, outputs_guard, token_guard
from harness.runs.model import GuardReading, RunRequest, RunResult, Session
from harness.runs.outcomes import classify, describe, failure_text
from harness.runs.process import End, make_folder, run_logged, stop_orphans
from harness.runs.server import POLL_S, Server, ServerFailure
from harness.vocabulary import Engine, Guard, GuardState, Mode, Outcome, Slot
from harness.workloads.model import EngineWorkload, Script
from harness.workloads.results import ScriptResult
from harness.workloads.scripts import EngineScripts, ScriptCall, client_module, scripts_of

__all__ = ["EngineBackend", "ModuleCheck", "Watch"]

# What a second server gets to fail or come up after the first has failed: its reason is usually the same.
_AFTER_FAILURE_S = 10.0
# How long after a failed run its server may take to end, if that was the reason.
_DYING_S = 2.0

ArmEnvironment = Callable[[Arm, Mapping[str, str]], dict[str, str]]
ModuleCheck = Callable[[Arm, Path], GuardReading]
# Makes the script's process import all that it needs and end at once.
_IMPORTING = {Engine.VLLM: ("bench", "serve", "--help"), Engine.SGLANG: ("--help",)}


class Watch(Protocol):
    """Looks at the machine from when it was made until it is asked."""

    def readings(self) -> tuple[GuardReading, ...]: ...


@dataclass(frozen=True, slots=True)
class EngineBackend:
    """harness.runs.model.Backend for a script. `model` is the folder of the made synthetic model or of the real one."""

    arms: Mapping[Slot, Arm]
    workload: EngineWorkload
    mode: Mode
    model: Path
    progress: Progress
    # Fixed ports for the servers; a slot that is not named gets a free one.
    ports: Mapping[Slot, int] = field(default_factory=dict)
    environment_of: ArmEnvironment = arm_environment
    modules_of: ModuleCheck = check_modules
    watch_of: Callable[[], Watch] = MachineWatch

    @property
    def scripts(self) -> EngineScripts:
        return scripts_of(self.workload.engine)

    def open(self, slots: tuple[Slot, ...], generation: int, directory: Path) -> Mapping[Slot, Session | RunResult]:
        """Fresh sessions; in live mode every server starts at once and is up, or has failed, on return.

        Raises RunError when a port is in use.
        """
        for orphan in stop_orphans():
            self.progress.warn(f"stopped {orphan}, left behind by a harness that was killed")
        if self.mode is Mode.PROCESS or self.workload.script is not Script.SERVE:
            return {slot: _FreshSession(self, slot) for slot in slots}
        sessions: dict[Slot, _LiveSession] = {}
        try:
            for slot in slots:
                sessions[slot] = _LiveSession(self, slot, directory / slot)
                sessions[slot].start()
            with self.progress.step(f"generation {generation}: starting {len(sessions)} servers"):
                failures = self._wait(sessions)
        except BaseException:
            for session in sessions.values():
                session.close()
            raise
        return {slot: _failed(failures[slot]) if slot in failures else session for slot, session in sessions.items()}

    def _wait(self, sessions: Mapping[Slot, _LiveSession]) -> dict[Slot, ServerFailure]:
        """Wait for all; once one has failed the others are not waited for much longer."""
        waiting = dict(sessions)
        failures: dict[Slot, ServerFailure] = {}
        deadline = float("inf")
        while waiting:
            for slot, session in list(waiting.items()):
                try:
                    up = session.poll_ready()
                except ServerFailure as failure:
                    failures[slot] = failure
                    deadline = min(deadline, time.monotonic() + _AFTER_FAILURE_S)
                    del waiting[slot]
                    continue
                if up:
                    del waiting[slot]
                elif time.monotonic() > deadline:
                    session.close()
                    why = f"stopped: the {next(iter(failures))} server failed to start"
                    failures[slot] = ServerFailure(Outcome.INTERRUPTED, why, session.log)
                    del waiting[slot]
            time.sleep(POLL_S)
        return failures

    def start_server(self, slot: Slot, directory: Path) -> Server:
        """Start, but do not wait for, the server of a slot, with its log and module record in `directory`."""
        make_folder(directory)
        arm = self.arms[slot]
        return Server(
            lambda port: arm.command(*self.scripts.server(self.workload, self.model, port)),
            environment=self.environment(slot, directory),
            directory=directory,
            port=self.ports.get(slot),
        )

    def environment(self, slot: Slot, directory: Path) -> dict[str, str]:
        """Environment of one process of an arm that records its modules below `directory`."""
        records = _records(directory)
        make_folder(records)
        # Unbuffered, so that a log has the script's and the engine's lines in the order in which they were said.
        own = {RECORD_VARIABLE: str(records), "PYTHONUNBUFFERED": "1"}
        return self.environment_of(self.arms[slot], {**self.workload.variables, **own})

    def script(self, request: RunRequest, server: Server | None) -> tuple[str, ...]:
        """Arguments for the arm's Python that run the script once; what it reads is written now."""
        call = ScriptCall(
            workload=self.workload,
            trees=self.arms[request.slot].trees,
            model=self.model,
            directory=request.directory,
            seed=request.seed,
            port=server.port if server else None,
        )
        self.scripts.prepare(call)
        return self.scripts.script(call)

    def judge(self, end: End, directory: Path) -> tuple[RunResult, list[GuardReading], ScriptResult | None]:
        """The result of a script that has ended; guards of the machine and the server are the caller's."""
        outcome = classify(end)
        if outcome is not Outcome.OK:
            detail = failure_text(f"the {self.workload.script} script failed: {describe(end)}", end)
            return RunResult(outcome, detail=detail, log=end.log), [], None
        result = self.scripts.read(directory / self.scripts.result_name, self.workload)
        guards = [error_guard(result), token_guard(result, self.workload), outputs_guard(result)]
        if result.outcome is not Outcome.OK:
            detail = failure_text(result.problem, end)
            return RunResult(result.outcome, detail=detail, log=end.log), guards, result
        detail = "; ".join(f"{key} {reason}" for key, reason in result.missing.items())
        return RunResult(Outcome.OK, result.metrics, detail=detail, log=end.log), guards, result

    def modules(self, slot: Slot, directory: Path) -> GuardReading:
        """The modules of every process that recorded below the directory."""
        return self.modules_of(self.arms[slot], _records(directory))


def _failed(failure: ServerFailure) -> RunResult:
    return RunResult(failure.outcome, detail=failure.detail, log=failure.log)


def _records(directory: Path) -> Path:
    return directory / "modules"


def _stricter(script: GuardReading, server: GuardReading) -> GuardReading:
    """The server's count, unless only the script's is wrong."""
    return script if script.state is GuardState.FIRED and server.state is GuardState.PASSED else server


def _finished(result: RunResult, guards: list[GuardReading], start: float) -> RunResult:
    return replace(result, guards=tuple(guards), seconds=time.monotonic() - start)


@dataclass(slots=True)
class _LiveSession:
    """A server that is up and a client that has the script imported; each run is one fork of the client."""

    backend: EngineBackend
    slot: Slot
    directory: Path
    server: Server | None = None
    client: Client | None = None

    def start(self) -> None:
        """Start both processes without waiting. Raises RunError when the port is in use."""
        self.server = self.backend.start_server(self.slot, self.directory)
        try:
            self.client = Client(
                self.backend.arms[self.slot].command,
                environment=self.backend.environment(self.slot, self.directory),
                directory=self.directory,
                module=client_module(self.backend.workload.engine, self.backend.arms[self.slot].trees),
                importing=_IMPORTING[self.backend.workload.engine],
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
        limit_s = self.backend.workload.start_timeout_s
        try:
            if not (server.ready or server.poll_ready(limit_s)) or not (client.ready or client.poll_ready(limit_s)):
                return False
        except BaseException:
            self.close()
            raise
        self.backend.progress.say(f"{self.slot} server up on port {server.port} after {duration(server.start_seconds)}")
        return True

    def run(self, request: RunRequest) -> RunResult:
        server, client = self._both()
        make_folder(request.directory)
        start = time.monotonic()
        counters = self.backend.scripts.counters
        try:
            server.check()
            before = read_counters(server.metrics())
            caches = CacheWatch(self.backend.arms[self.slot].variables)
            offset = server.log.stat().st_size
            command = self.backend.script(request, server)
            watch = self.backend.watch_of()
            end = client.run(
                # Behind "-m MODULE", which the client has imported.
                command[2:],
                directory=request.directory,
                log=request.directory / "script.log",
                timeout_s=self.backend.workload.run_timeout_s,
            )
            machine = watch.readings()
            result, guards, said = self.backend.judge(end, request.directory)
            # A client whose server died ends with an error of its own; the server's is the one that tells.
            server.check(within_s=0.0 if result.outcome is Outcome.OK else _DYING_S)
        except ServerFailure as failure:
            return _finished(_failed(failure), [], start)
        guards += machine
        if said is not None:
            after = read_counters(server.metrics())
            guards.append(cache_guard(said, counters, before, after))
            counted = counted_guard(self.backend.workload, counters, before, after)
            if counted is not None:
                guards = [_stricter(one, counted) if one.guard is Guard.TOKENS else one for one in guards]
        guards.append(compilation_guard(server.log, offset, caches))
        guards.append(self.backend.modules(self.slot, self.directory))
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
class _FreshSession:
    """Nothing is kept: each run has its own process, for serve its own server too."""

    backend: EngineBackend
    slot: Slot

    def run(self, request: RunRequest) -> RunResult:
        make_folder(request.directory)
        start = time.monotonic()
        if self.backend.workload.script is not Script.SERVE:
            return self._script(request, None, start)
        server = self.backend.start_server(self.slot, request.directory)
        try:
            server.wait_ready(self.backend.workload.start_timeout_s)
            result = self._script(request, server, start)
            server.check(within_s=0.0 if result.outcome is Outcome.OK else _DYING_S)
        except ServerFailure as failure:
            return _finished(_failed(failure), [], start)
        finally:
            server.stop()
        return result

    def _script(self, request: RunRequest, server: Server | None, start: float) -> RunResult:
        command = self.backend.arms[self.slot].command(*self.backend.script(request, server))
        watch = self.backend.watch_of()
        end = run_logged(
            command,
            environment=self.backend.environment(self.slot, request.directory),
            directory=request.directory,
            log=request.directory / "script.log",
            timeout_s=self.backend.workload.run_timeout_s,
        )
        machine = watch.readings()
        result, guards, said = self.backend.judge(end, request.directory)
        guards += machine
        if server is not None and said is not None:
            guards.append(cache_guard(said, self.backend.scripts.counters, {}, read_counters(server.metrics())))
        elif server is None and said is not None:
            guards.append(window_guard(end.log, self.backend.scripts.measuring))
        guards.append(self.backend.modules(self.slot, request.directory))
        return _finished(result, guards, start)

    def close(self) -> None:
        return
