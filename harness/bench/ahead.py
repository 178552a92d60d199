"""Starts the workers of several generations at once, since a calibration needs hundreds of fresh processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.runs.kernel_backend import KernelBackend
from harness.runs.model import RunResult, Session
from harness.vocabulary import Slot

__all__ = ["AheadBackend"]

Opened = Mapping[Slot, Session | RunResult]


@dataclass(slots=True)
class AheadBackend:
    """harness.runs.model.Backend over a KernelBackend; `last` is the plan's last generation, `width` how many go together.

    Still every generation has processes of its own; those of the next ones are up and idle while one is measured. Closing
    this backend closes what was started and never asked for.
    """

    inner: KernelBackend
    last: int
    width: int
    _waiting: dict[int, tuple[tuple[Slot, ...], Opened]] = field(default_factory=dict)

    def open(self, slots: tuple[Slot, ...], generation: int, directory: Path) -> Opened:
        """The generation's sessions, started before or now, with those of the generations that follow."""
        waiting = self._waiting.pop(generation, None)
        if waiting is not None and set(waiting[0]) == set(slots):
            return waiting[1]
        if waiting is not None:
            _close(waiting[1])
        coming = range(generation + 1, min(generation + self.width, self.last + 1))
        directories = {generation: directory} | {
            number: directory.parent / f"{number}-ahead" for number in coming if number not in self._waiting
        }
        opened = dict(self.inner.open_generations(slots, directories))
        for number in directories:
            if number != generation:
                self._waiting[number] = (slots, opened[number])
        return opened[generation]

    def close(self) -> None:
        """Stop the workers that nobody asked for."""
        for _, opened in self._waiting.values():
            _close(opened)
        self._waiting.clear()


def _close(opened: Opened) -> None:
    for one in opened.values():
        if not isinstance(one, RunResult):
            one.close()
