"""The evidence files of a series: read, matched with what the series is now, and sorted by what they show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import EvidenceError
from harness.reports.evidence import Evidence, read_evidence
from harness.series.lock import Lock
from harness.series.model import Series
from harness.upstream_tests.model import KIND, TestReport, read_report
from harness.vocabulary import Slot, Source, Tier, Verdict

__all__ = ["Gathered", "gather"]


@dataclass(slots=True)
class Gathered:
    """What was found. `wrong` are complaints, `other` files that name no commit and are only pointed at."""

    confirmed: list[tuple[str, Evidence]] = field(default_factory=list)
    screens: list[tuple[str, Evidence]] = field(default_factory=list)
    tests: list[tuple[str, TestReport]] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def gather(series: Series, lock: Lock) -> Gathered:
    """Read every file that series.toml names as evidence, and hold its commit and device against the series'."""
    found = Gathered()
    for name in series.evidence:
        path = series.directory / name
        if path.suffix != ".json":
            found.other.append(name)
            continue
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            found.wrong.append(f"evidence {name} cannot be read: {error}")
            continue
        if not isinstance(data, dict) or not ({"plan", "plan_digest"} <= data.keys() or data.get("kind") == KIND):
            found.other.append(name)
            continue
        try:
            _sort(found, series, lock, name, path, is_tests=data.get("kind") == KIND)
        except EvidenceError as error:
            found.wrong.append(f"evidence {name}: {error}")
    return found


def _sort(found: Gathered, series: Series, lock: Lock, name: str, path: Path, *, is_tests: bool) -> None:
    if is_tests:
        report = read_report(path)
        found.wrong += [f"evidence {name}: {one}" for one in _wrong_tests(series, lock, report)]
        found.tests.append((name, report))
        return
    evidence = read_evidence(path)
    if evidence.plan.aa:
        found.other.append(name)
        return
    found.wrong += [f"evidence {name}: {one}" for one in _wrong(series, lock, evidence)]
    (found.confirmed if evidence.plan.tier is Tier.CONFIRM else found.screens).append((name, evidence))


def _wrong(series: Series, lock: Lock, evidence: Evidence) -> Iterator[str]:
    trees = [tree for tree in evidence.arms[Slot.PATCHED].trees if tree.label == series.id]
    if not trees:
        yield f"its patched arm is {evidence.arms[Slot.PATCHED].name}, not {series.id}"
    for tree in trees:
        yield from _wrong_tip(series, lock, tree.pin, tree.source, tree.tip)
        if tree.changes:
            yield "its patched tree had uncommitted changes"
    device = series.pr.device if series.pr else ""
    if device and device.lower() not in evidence.plan.device.lower():
        yield f"it was measured on {evidence.plan.device}, but [pr] says {device}"
    if evidence.decision.is_void:
        yield "it is void: measure again, or take it out"
    if evidence.decision.verdict is Verdict.SLOWER:
        yield "its verdict is slower"


def _wrong_tests(series: Series, lock: Lock, report: TestReport) -> Iterator[str]:
    if report.series != series.id:
        yield f"it is of {report.series}"
    yield from _wrong_tip(series, lock, report.pin, report.source, report.patched.tip)
    device = series.pr.device if series.pr else ""
    if device and device.lower() not in report.machine.lower():
        yield f"it was run on {report.machine}, but [pr] says {device}"
    for one in report.new_failures:
        yield f"{one.test} {one.patched} with the series and {one.base} without it"


def _wrong_tip(series: Series, lock: Lock, pin: str, source: Source, tip: str) -> Iterator[str]:
    locked = lock.tips.get((series.id, pin, source))
    if locked is None:
        yield f"upstream/lock.toml has no tip of {series.id} on {pin} from {source} to hold it against"
    elif locked != tip:
        yield f"it is of commit {tip[:12]}, but {series.id} on {pin} from {source} is {locked[:12]} now: measure again"
