"""What the engine's own tests said on both arms, and what became of each test; stored as one JSON file beside a series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harness.errors import EvidenceError
from harness.experiments import codec
from harness.files import write_atomically
from harness.vocabulary import Device, Engine, Source

__all__ = ["KIND", "ArmResult", "Change", "ChangeKind", "TestOutcome", "TestReport", "read_report", "write_report"]

KIND = "upstream-tests"
SCHEMA = 1


class TestOutcome(StrEnum):
    """How one test ended. Nothing is dropped: a test that never began because its file did not is one too."""

    __test__ = False  # pytest takes classes of this name for tests

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    # The interpreter ended in it, or it took longer than it may.
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    # It asked for a server or for a model's files, and there are none here.
    UNAVAILABLE = "needs network or model"
    # The file is not in this tree, or the test is not in the file.
    ABSENT = "absent"
    # The file's time was over, or it crashed too often.
    NOT_RUN = "not run"


class ChangeKind(StrEnum):
    """What became of a test between base and patched. Only a new failure is held against the series."""

    NEW_FAILURE = "new failure"
    FIXED = "fixed"
    NEWLY_SKIPPED = "newly skipped"
    NO_LONGER_RUN = "no longer run"
    STILL_FAILING = "fails on both"


@dataclass(frozen=True, slots=True)
class Change:
    """One test that does not pass on both arms, or did not on one. `detail` is the last line of what it said."""

    test: str
    kind: ChangeKind
    base: TestOutcome
    patched: TestOutcome
    detail: str


@dataclass(frozen=True, slots=True)
class ArmResult:
    """Counts by outcome, and of skips by reason, of one arm. `seconds` of wall time for all files."""

    tip: str
    counts: Mapping[str, int]
    skips: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class TestReport:
    __test__ = False

    schema: int
    kind: str
    # UTC, ISO 8601.
    written: str
    series: str
    engine: Engine
    pin: str
    source: Source
    device: Device
    # The GPU's name, else the CPU's.
    machine: str
    versions: Mapping[str, str]
    command: str
    files: tuple[str, ...]
    # Files that were asked for and that the pin's tree does not have.
    missing_files: tuple[str, ...]
    base: ArmResult
    patched: ArmResult
    changes: tuple[Change, ...]

    @property
    def new_failures(self) -> tuple[Change, ...]:
        return tuple(one for one in self.changes if one.kind is ChangeKind.NEW_FAILURE)


def write_report(path: Path, report: TestReport) -> None:
    """Store as JSON, whole or not at all. Raises EvidenceError."""
    write_atomically(path, codec.pretty(report), EvidenceError)


def read_report(path: Path) -> TestReport:
    """Read strictly. Raises EvidenceError for garbage, another kind of file or schema, or a malformed field."""
    try:
        data = codec.parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"cannot read {path}: {error}") from error
    if not isinstance(data, dict) or data.get("kind") != KIND or data.get("schema") != SCHEMA:
        raise EvidenceError(f"{path} is not a result of `nox -s upstream_tests` (schema {SCHEMA})")
    return codec.decode(TestReport, data, str(path))
