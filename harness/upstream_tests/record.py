"""The record that the plugin writes while tests run: what was collected, what ended, and what is running."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.upstream_tests.model import TestOutcome

__all__ = ["Ended", "Record", "read_record"]


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: TestOutcome
    detail: str


@dataclass(slots=True)
class Record:
    """`running` is the test that began and did not end, None when there is none."""

    collected: Sequence[str] = ()
    ended: dict[str, Ended] = field(default_factory=dict)
    running: str | None = None


def read_record(path: Path) -> Record:
    """What the file says so far; its last line may be half written. No file is a record of nothing."""
    record = Record()
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return record
    for line in lines[:-1]:  # after the last line feed there is nothing, or half a line
        entry = json.loads(line)
        match entry["event"]:
            case "collected":
                record.collected = entry["tests"]
            case "start":
                record.running = entry["test"]
            case "end":
                record.ended[entry["test"]] = Ended(TestOutcome(entry["outcome"]), entry["detail"])
                record.running = None
    return record
