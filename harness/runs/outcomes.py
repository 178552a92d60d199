"""How a run ended, from its exit code and its log."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from harness.runs.process import End
from harness.vocabulary import Outcome

__all__ = ["classify", "describe", "meaningful_lines"]

# Bytes at the end of a log that are searched.
_TAIL = 256 * 1024
_OUT_OF_MEMORY = re.compile(
    r"\bMemoryError\b|Cannot allocate memory|can't allocate memory|std::bad_alloc|OutOfMemoryError|out of memory"
    r"|No available memory for the cache blocks",
    re.IGNORECASE,
)
_INTERRUPTED = {-signal.SIGINT, 128 + signal.SIGINT}
# Progress bars ("45%|####", "12it/s]") and empty decoration say nothing about a failure.
_NOISE = re.compile(r"\d+%\|.*\||[=\-_*~^ ]+$|.*\bit/s\]$")
_ERROR = re.compile(
    r"^(\[\w+\] |.*?\b(ERROR|CRITICAL)\b.*? )?([\w.]*(Error|Exception|Interrupt)|assertion failed|fatal)\b.*",
    re.IGNORECASE,
)


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - _TAIL))
            return stream.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def classify(end: End) -> Outcome:
    """OK for exit code 0 within the time; the result file is judged apart."""
    if end.timed_out:
        return Outcome.TIMED_OUT
    if end.code == 0:
        return Outcome.OK
    if end.oom_kills or _OUT_OF_MEMORY.search(_tail(end.log)):
        return Outcome.OUT_OF_MEMORY
    if end.code in _INTERRUPTED:
        return Outcome.INTERRUPTED
    return Outcome.CRASHED


def describe(end: End) -> str:
    """One sentence: "exit code 1 after 3.2 s", "killed by SIGSEGV after ...", "stopped at the time limit ..."."""
    if end.timed_out:
        return f"stopped at the time limit after {end.seconds:.1f} s"
    if end.code < 0:
        return f"killed by {signal.Signals(-end.code).name} after {end.seconds:.1f} s"
    return f"exit code {end.code} after {end.seconds:.1f} s"


def meaningful_lines(log: Path, count: int = 8) -> str:
    """The last lines of a log that tell something, with the first error line put before them when it lies further up."""
    lines = []
    for raw in _tail(log).splitlines():
        # A progress bar redraws its line after a carriage return (splitlines has split there).
        line = raw.rstrip()
        if line.strip() and not _NOISE.match(line.strip()):
            lines.append(line)
    last = lines[-count:]
    first_error = next((line for line in lines[:-count] if _ERROR.match(line)), None)
    if first_error is not None and not any(_ERROR.match(line) for line in last):
        last = [first_error, "...", *last]
    return "\n".join(last)
