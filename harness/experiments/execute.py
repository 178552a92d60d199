"""Runs a plan through a backend: fresh sessions for each generation, every run written down as it ends."""

from __future__ import annotations

import datetime
import statistics
import time
from contextlib import ExitStack

from harness.experiments.plan import Plan
from harness.experiments.samples import AttemptState, Sample, attempts_of
from harness.experiments.store import ExperimentStore
from harness.progress import Progress, duration
from harness.runs.model import Backend, RunRequest, RunResult, Session
from harness.vocabulary import Mode, Outcome, Slot

__all__ = ["execute"]


class Clock:
    """Estimates the time left from what starts and runs took so far, else from the plan's own estimates."""

    def __init__(self, plan: Plan, store: ExperimentStore) -> None:
        self._plan = plan
        self._starts: list[float] = [one.seconds for one in store.samples if one.position == 0 and one.slot is Slot.BASE]
        self._runs: list[float] = [one.seconds for one in store.samples if one.position != 0]

    def started(self, seconds: float) -> None:
        self._starts.append(seconds)

    def ran(self, seconds: float) -> None:
        self._runs.append(seconds)

    def left(self, runs: int, starts: int) -> str:
        run = statistics.median(self._runs) if self._runs else self._plan.run_seconds
        start = statistics.median(self._starts) if self._starts else self._plan.start_seconds
        if run is None or (starts and start is None):
            return "time left unknown yet"
        return f"about {duration(runs * run + starts * (start or 0.0))} left"


def execute(plan: Plan, backend: Backend, store: ExperimentStore, progress: Progress) -> tuple[Sample, ...]:
    """Make every generation that is not complete yet; returns all samples of the experiment, earlier ones included.

    Stops early, with what is stored, when a run fails (a finding about an arm) or when more generations were disturbed than
    the plan allows to be made again: decide() then says void. KeyboardInterrupt closes the sessions and passes on; finished
    generations are kept and the half one is made again by the next execute(). Raises EvidenceError when a sample cannot be
    stored.
    """
    for message in store.aside:
        progress.warn(message)
    clock = Clock(plan, store)
    first = True
    while True:
        attempts = attempts_of(plan, store.samples)
        failed = [one for one in attempts if one.state is AttemptState.FAILED]
        disturbed = [one for one in attempts if one.state is AttemptState.DISTURBED]
        if failed:
            progress.warn(f"stopped, the experiment is void: {failed[0].reason}")
            break
        if len(disturbed) > plan.replacements:
            progress.warn(
                f"stopped: {len(disturbed)} generations were disturbed, the plan allows {plan.replacements} to be made again"
            )
            break
        complete = {one.generation for one in attempts if one.state is AttemptState.COMPLETE}
        todo = [one.number for one in plan.generations if one.number not in complete]
        if not todo:
            break
        if disturbed and disturbed[-1].generation == todo[0]:
            progress.warn(
                f"generation {todo[0]} is made again ({len(disturbed)} of {plan.replacements}): {disturbed[-1].reason}"
            )
        _Attempt(plan, backend, store, todo, progress=progress, clock=clock, first=first).make()
        first = False
    return tuple(store.samples)


class _Attempt:
    """One go at the first generation of `todo`."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        store: ExperimentStore,
        todo: list[int],
        *,
        progress: Progress,
        clock: Clock,
        first: bool,
    ) -> None:
        self._plan = plan
        self._backend = backend
        self._store = store
        self._progress = progress
        self._clock = clock
        self._generation = plan.generation(todo[0])
        self._later = todo[1:]
        self._warmups = plan.warmups(todo[0], first=first)
        # A process may keep for life what it got from starting first, so who starts first takes turns, by seed
        # where there is one generation only.
        turn = (todo[0] - 1 + plan.seed) % len(self._generation.slots)
        self._slots = self._generation.slots[turn:] + self._generation.slots[:turn]
        self._attempt = store.begin(todo[0])
        self._to_run = len(self._warmups) * len(self._generation.slots) + len(self._generation.turns)
        self._done = 0

    def make(self) -> None:
        """Open, warm up, run; ends at the first run that fails or is void, because the generation cannot count any more."""
        with ExitStack() as stack:
            try:
                self._make(stack)
            except KeyboardInterrupt:
                # Told before the sessions are closed, which takes seconds: who waits must know what is kept.
                planned = len(self._plan.generations)
                kept = f"{planned - 1 - len(self._later)} of {planned} generations are kept"
                self._progress.warn(
                    f"interrupted, stopping what runs; {kept}, generation {self._generation.number} will be made again. "
                    f"Go on with: --resume {self._plan.id}"
                )
                raise

    def _make(self, stack: ExitStack) -> None:
        sessions = self._open(stack)
        if sessions is None:
            return
        for index, seed in enumerate(self._warmups, start=1):
            for slot in self._slots:
                if not self._run(sessions[slot], -index, slot, seed):
                    return
        for turn in self._generation.turns:
            if not self._run(sessions[turn.slot], turn.position, turn.slot, turn.seed):
                return

    def _open(self, stack: ExitStack) -> dict[Slot, Session] | None:
        number, slots = self._generation.number, self._slots
        if self._plan.mode is Mode.LIVE:
            self._progress.say(
                f"generation {number}/{len(self._plan.generations)}: starting {', '.join(slots)}, {self._left(starting=True)}"
            )
        began, moment = time.monotonic(), _now()
        opened = self._backend.open(slots, number, self._store.directory(number, self._attempt))
        seconds = time.monotonic() - began
        sessions = {slot: one for slot, one in opened.items() if not isinstance(one, RunResult)}
        for session in sessions.values():
            stack.callback(session.close)
        self._clock.started(seconds)
        for slot in slots:
            one = opened[slot]
            result = one if isinstance(one, RunResult) else RunResult(Outcome.OK, seconds=seconds)
            self._keep(result, 0, slot, 0, moment)
        return sessions if len(sessions) == len(slots) else None

    def _run(self, session: Session, position: int, slot: Slot, seed: int) -> bool:
        """One run, stored; False when the generation cannot count any more."""
        number = self._generation.number
        what = f"run {position}/{len(self._generation.turns)}" if position > 0 else f"warm-up {-position}"
        self._progress.say(f"generation {number}/{len(self._plan.generations)}, {what} ({slot}), {self._left()}")
        request = RunRequest(number, position, slot, seed, self._store.directory(number, self._attempt, position))
        moment, began = _now(), time.monotonic()
        try:
            result = session.run(request)
        except KeyboardInterrupt:
            result = RunResult(Outcome.INTERRUPTED, seconds=time.monotonic() - began)
            self._keep(result, position, slot, seed, moment)
            raise
        self._keep(result, position, slot, seed, moment)
        if result.outcome is Outcome.INTERRUPTED:
            raise KeyboardInterrupt
        self._done += 1
        self._clock.ran(result.seconds)
        current = [one for one in self._store.samples if (one.generation, one.attempt) == (number, self._attempt)]
        (judged,) = attempts_of(self._plan, current)
        return judged.state not in {AttemptState.FAILED, AttemptState.DISTURBED}

    def _keep(self, result: RunResult, position: int, slot: Slot, seed: int, moment: str) -> None:
        self._store.append(
            Sample(
                generation=self._generation.number,
                attempt=self._attempt,
                position=position,
                slot=slot,
                seed=seed,
                outcome=result.outcome,
                metrics={key: float(value) for key, value in result.metrics.items()},
                guards=result.guards,
                seconds=result.seconds,
                detail=result.detail,
                log=self._store.relative(result.log),
                started=moment,
            )
        )

    def _left(self, *, starting: bool = False) -> str:
        later = sum(len(self._plan.generation(one).turns) for one in self._later)
        warmups = sum(len(self._plan.warmups(one, first=False)) * len(self._plan.generation(one).slots) for one in self._later)
        starts = (len(self._later) + starting) if self._plan.mode is Mode.LIVE else 0
        return self._clock.left(self._to_run - self._done + later + warmups, starts)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
