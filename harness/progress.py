"""What a person sees while long work goes on: one line a step on stderr, with the time since the start."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["Progress", "duration"]


def duration(seconds: float) -> str:
    """1.234 -> '1.2 s', 75 -> '1 min 15 s', 7384 -> '2 h 3 min'."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


class Progress:
    """Prints steps to a stream (stderr by default, so that stdout stays the result)."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._start = time.monotonic()

    def say(self, message: str) -> None:
        if not self._quiet:
            elapsed = duration(time.monotonic() - self._start)
            print(f"[{elapsed:>12}] {message}", file=self._stream, flush=True)

    def warn(self, message: str) -> None:
        """A fallback or a doubt: printed even when quiet."""
        print(f"warning: {message}", file=self._stream, flush=True)

    @contextmanager
    def step(self, message: str) -> Iterator[None]:
        """Announce a step, and say how long it took when it ends well."""
        self.say(f"{message} ...")
        start = time.monotonic()
        yield
        self.say(f"{message}: done in {duration(time.monotonic() - start)}")
