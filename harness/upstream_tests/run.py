"""Run one file of the engine's tests on one arm, to its end whatever its tests do."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.runs.process import Child, End
from harness.upstream_tests.model import TestOutcome
from harness.upstream_tests.record import Ended, Record, read_record

__all__ = ["FileRun", "Limits", "run_file"]

PLUGIN = "upkernel_results"
# Each restart costs an import of the engine, and a file that has crashed so often has said enough.
MOST_RESTARTS = 8
# pytest's exit codes: all passed, some failed, and no test left after those that ran before a crash.
ORDERLY = frozenset({0, 1, 5})


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: for one test (and for the import and collection before the first), and for one file."""

    test_s: float
    file_s: float


@dataclass(frozen=True, slots=True)
class FileRun:
    """How to run it: the interpreter, its environment, the folder with the tests, where records and logs go."""

    python: Path
    environment: Mapping[str, str]
    folder: Path
    output: Path
    options: Sequence[str]


def run_file(how: FileRun, file: str, limits: Limits) -> dict[str, Ended]:
    """Every test of the file with its end.

    A test that hangs or takes the interpreter with it is stopped and named, and the tests after it run in a new process. What
    the time limit of the file leaves is `not run`.
    """
    ended: dict[str, Ended] = {}
    collected: Sequence[str] = ()
    deadline = time.monotonic() + limits.file_s
    for attempt in range(MOST_RESTARTS + 1):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        record, end = _once(how, file, attempt, tuple(ended), Limits(limits.test_s, left))
        collected = record.collected or collected
        ended |= record.ended
        died = Ended(TestOutcome.TIMED_OUT, f"longer than {limits.test_s:.0f} s") if end is None else _died(end)
        if record.running is not None:
            ended[record.running] = died
            continue
        if end is not None and (end.timed_out or end.code in ORDERLY):
            break
        if record.ended and set(collected) - set(ended):
            continue  # it died between two tests
        ended[f"{file}::({'exit' if ended else 'collection'})"] = died
        break
    for test in collected:
        ended.setdefault(
            test, Ended(TestOutcome.NOT_RUN, f"the file took longer than {limits.file_s:.0f} s, or crashed too often")
        )
    if not ended:
        ended[f"{file}::(collection)"] = Ended(TestOutcome.ABSENT, "no tests in it")
    return ended


def _once(how: FileRun, file: str, attempt: int, done: Sequence[str], limits: Limits) -> tuple[Record, End | None]:
    """One process. The end is None when a test took too long and was stopped."""
    how.output.mkdir(parents=True, exist_ok=True)
    stem = file.replace("/", "-").removesuffix(".py") + f"-{attempt}"
    record, listed = how.output / f"{stem}.jsonl", how.output / f"{stem}.done"
    record.unlink(missing_ok=True)
    listed.write_text("".join(f"{test}\n" for test in done), encoding="utf-8")
    command = (
        *(str(how.python), "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "--tb=short", "-q"),
        *("--continue-on-collection-errors", *how.options, file),
    )
    environment = {**how.environment, "UPKERNEL_TEST_RECORD": str(record), "UPKERNEL_TEST_DONE": str(listed)}
    watch = _Watch(record, limits.test_s)
    with Child(command, environment=environment, directory=how.folder, log=how.output / f"{stem}.log", grace_s=5.0) as child:
        end = child.wait(limits.file_s, until=watch.hangs)
    return read_record(record), end


class _Watch:
    """Whether the record has not grown for longer than one test may take."""

    def __init__(self, record: Path, test_s: float) -> None:
        self._record = record
        self._test_s = test_s
        self._size = -1
        self._since = time.monotonic()

    def hangs(self) -> bool:
        try:
            size = self._record.stat().st_size
        except FileNotFoundError:
            size = -1
        if size != self._size:
            self._size, self._since = size, time.monotonic()
        return time.monotonic() - self._since > self._test_s


def _died(end: End) -> Ended:
    if end.timed_out:
        return Ended(TestOutcome.TIMED_OUT, f"the file took longer than it may ({end.seconds:.0f} s)")
    if end.code < 0:
        name = signal.Signals(-end.code).name
    elif end.code > 128 and end.code - 128 in signal.valid_signals():  # as a shell says it
        name = signal.Signals(end.code - 128).name
    else:
        name = f"exit code {end.code}"
    oom = ", while the kernel was killing for want of memory" if end.oom_kills else ""
    return Ended(TestOutcome.CRASHED, f"the interpreter ended with {name}{oom}")
