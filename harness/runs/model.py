"""A run: one execution of a workload on one arm; and the seam through which an experiment asks for runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.vocabulary import Guard, GuardState, Outcome, Slot

__all__ = ["Backend", "GuardReading", "RunRequest", "RunResult", "Session"]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the experiment asks for. Both arms of a pair get the same seed, so the same prompts."""

    generation: int
    # Position in the generation's order; warm-up runs have negative positions.
    position: int
    slot: Slot
    seed: int
    # The run's own folder for result files and logs; the session creates it.
    directory: Path


@dataclass(frozen=True, slots=True)
class GuardReading:
    guard: Guard
    state: GuardState
    # What was read and against which limit, with units, for people: "load 1.9 before the run, limit 0.5".
    detail: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """How the run ended. `metrics` is empty unless the outcome is OK; a metric that the script did not give is not in it."""

    outcome: Outcome
    metrics: Mapping[str, float] = field(default_factory=dict)
    guards: tuple[GuardReading, ...] = ()
    seconds: float = 0.0
    # For people: the last lines of the log when it failed.
    detail: str = ""
    log: Path | None = None


class Session(Protocol):
    """One arm made ready in fresh processes (live: a server that is up; process: nothing until a run starts)."""

    def run(self, request: RunRequest) -> RunResult:
        """Execute once. Never raises for a failure of the engine: that is an outcome."""
        ...

    def close(self) -> None:
        """Stop every process of the session; safe to call twice."""
        ...


class Backend(Protocol):
    """Makes sessions. The experiment knows nothing of engines, servers or GPUs beyond this."""

    def open(self, slots: tuple[Slot, ...], generation: int, directory: Path) -> Mapping[Slot, Session | RunResult]:
        """Start fresh sessions for the slots (at once where that is safe); a failed start gives its RunResult."""
        ...
