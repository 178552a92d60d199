"""Runs an engine's own benchmark scripts on the arms of an experiment, against live servers or in fresh processes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from harness.runs.engine_calls import EngineCalls
from harness.runs.engine_sessions import FreshSession, LiveSession, failed
from harness.runs.model import RunResult, Session
from harness.runs.process import stop_orphans
from harness.runs.server import POLL_S, ServerFailure
from harness.vocabulary import Mode, Outcome, Slot
from harness.workloads.model import Script

__all__ = ["EngineBackend"]

# What a second server gets to fail or come up after the first has failed: its reason is usually the same.
_AFTER_FAILURE_S = 10.0


class EngineBackend(EngineCalls):
    """harness.runs.model.Backend for the workload's script."""

    __slots__ = ()

    def open(self, slots: tuple[Slot, ...], generation: int, directory: Path) -> Mapping[Slot, Session | RunResult]:
        """Fresh sessions; in live mode every server starts at once and is up, or has failed, on return.

        Raises RunError when a port is in use.
        """
        for orphan in stop_orphans():
            self.progress.warn(f"stopped {orphan}, left behind by a harness that was killed")
        if self.mode is Mode.PROCESS or self.workload.script is not Script.SERVE:
            return {slot: FreshSession(self, slot) for slot in slots}
        sessions: dict[Slot, LiveSession] = {}
        try:
            for slot in slots:
                sessions[slot] = LiveSession(self, slot, directory / slot)
                sessions[slot].start()
            with self.progress.step(f"generation {generation}: starting {len(sessions)} servers"):
                failures = self._wait(sessions)
        except BaseException:
            for session in sessions.values():
                session.close()
            raise
        return {slot: failed(failures[slot]) if slot in failures else session for slot, session in sessions.items()}

    def _wait(self, sessions: Mapping[Slot, LiveSession]) -> dict[Slot, ServerFailure]:
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
