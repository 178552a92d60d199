"""How a run ended, from its exit code and its log, in words for people and for evidence."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from harness.runs.process import End
from harness.vocabulary import Outcome

__all__ = ["classify", "describe", "failure_text", "meaningful_lines", "without_paths"]

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

# The line of a traceback that says what was raised: "ValueError: too short", behind whatever the log puts before it.
_EXCEPTION = re.compile(r"(?:^|\s)[\w.]*\w(?:Error|Exception)(?::|$)")
# vLLM's API server ends with such a line when its engine core, which logs to the same file, has failed.
_ELSEWHERE = re.compile(r"root cause above|stack trace above", re.IGNORECASE)
# Characters of a log's line that are quoted in a headline.
_REASON_LENGTH = 200
# An absolute path, but not the path of a URL.
_PATH = re.compile(r"(?<![\w./~-])/([\w.+@-]+)((?:/[\w.+@-]+)+)")
# Parts at the end of a path that say which file it is.
_PARTS_KEPT = 3


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


def _lines(log: Path) -> list[str]:
    """The lines that tell something."""
    found = []
    for raw in without_paths(_tail(log)).splitlines():
        # A progress bar redraws its line after a carriage return (splitlines has split there).
        line = raw.rstrip()
        if line.strip() and not _NOISE.match(line.strip()):
            found.append(line)
    return found


def meaningful_lines(log: Path, count: int = 8) -> str:
    """The last lines of a log that tell something, with the first error line put before them when it lies further up."""
    lines = _lines(log)
    last = lines[-count:]
    first_error = next((line for line in lines[:-count] if _ERROR.match(line)), None)
    if first_error is not None and not any(_ERROR.match(line) for line in last):
        last = [first_error, "...", *last]
    return "\n".join(last)


def failure_text(what: str, end: End) -> str:
    """Why a run failed: the end of its log, and as the last line, which headlines show, `what` with the log's last error."""
    headline = without_paths(what)
    # What a process says while it is stopped at its limit is not why it was slow.
    reason = "" if end.timed_out else _reason(_lines(end.log))
    if reason:
        headline += f": {reason[:_REASON_LENGTH]}{'...' if len(reason) > _REASON_LENGTH else ''}"
    return "\n".join(part for part in (meaningful_lines(end.log), headline) if part)


def _reason(lines: list[str]) -> str:
    """The last line that names an exception, else the last one of an error; "" when there is none."""
    errors = [line.strip() for line in lines if _ERROR.match(line) or _EXCEPTION.search(line)]
    causes = [line for line in errors if not _ELSEWHERE.search(line)] or errors
    named = [line for line in causes if _EXCEPTION.search(line)] or causes
    return named[-1] if named else ""


def without_paths(text: str) -> str:
    """Absolute paths of this machine cut to their last parts: the rest names a user and tells others nothing.

    "/health" and "/v1/completions" stay, because no folder of the machine's root is called so.
    """
    return _PATH.sub(_shortened, text)


def _shortened(match: re.Match[str]) -> str:
    top, rest = match.groups()
    if not Path("/", top).is_dir():
        return match.group()
    # The top folder goes, and the one below it, which may be a user's name (/home/NAME).
    parts = rest.split("/")[1:]
    return "/".join(("...", *(parts[1:] or parts)[-_PARTS_KEPT:]))
