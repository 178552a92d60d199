"""What base against base gave before: the noise floor of a metric, workload and device, from every A/A run and control.

A record holds an experiment's A/A log-ratio and those of its generations. Like is compared with like: a screen (one
generation) is held against the spread of single generations, a verdict against the largest ratio of whole confirm
experiments. A process-mode record says nothing about live mode.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from harness.errors import EvidenceError
from harness.experiments import codec, statistics
from harness.experiments.plan import Plan
from harness.experiments.samples import AttemptState, Sample, attempts_of, ratio_values
from harness.files import write_atomically
from harness.paths import Paths
from harness.vocabulary import Slot, Tier

__all__ = ["AARecord", "History", "append", "load", "load_all", "record_experiment", "records_of"]

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class AARecord:
    """One A/A comparison: `ratio` is ln(second base arm / base), the mean of `generations`."""

    experiment: str
    # UTC, ISO 8601: when the plan was made.
    date: str
    tier: Tier
    ratio: float
    generations: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class History:
    """The records of one (workload, metric, device, mode), oldest first."""

    records: tuple[AARecord, ...] = ()

    def without(self, experiment: str) -> History:
        """All but one experiment's own record, so that an experiment looked at again is not judged by itself."""
        return History(tuple(one for one in self.records if one.experiment != experiment))

    @property
    def spread(self) -> float | None:
        """Root mean square of the single generations' A/A log-ratios; None without a record."""
        values = [value for one in self.records for value in one.generations]
        return statistics.root_mean_square(values) if values else None

    @property
    def experiments(self) -> int:
        """How many whole confirm experiments `largest` is the largest of."""
        return sum(one.tier is Tier.CONFIRM for one in self.records)

    @property
    def largest(self) -> float | None:
        """The largest |log-ratio| of a whole confirm experiment; None without one."""
        return max((abs(one.ratio) for one in self.records if one.tier is Tier.CONFIRM), default=None)


def _key(plan: Plan, metric: str) -> dict[str, Any]:
    return {
        "workload": plan.workload,
        "workload_digest": plan.workload_digest,
        "metric": metric,
        "device": plan.device,
        "mode": plan.mode.value,
    }


def _file(paths: Paths, plan: Plan, metric: str) -> Path:
    digest = hashlib.sha256(codec.canonical(_key(plan, metric)).encode()).hexdigest()
    return paths.calibration / f"{plan.workload.replace('/', '-')}-{metric}-{digest[:12]}.json"


def load(paths: Paths, plan: Plan, metric: str) -> History:
    """The stored records for this plan's workload, device and mode; empty when there are none. Raises EvidenceError."""
    file = _file(paths, plan, metric)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return History()
    except OSError as error:
        raise EvidenceError(f"cannot read {file}: {error.strerror}") from error
    data = codec.parse(text, str(file))
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else "none"
        raise EvidenceError(
            f"{file} has schema version {found}, this harness reads {SCHEMA}. Move the file away to start a new record."
        )
    if {name: data.get(name) for name in _key(plan, metric)} != _key(plan, metric):
        raise EvidenceError(f"{file} is of another workload, metric, device or mode than its name says. Move it away.")
    return codec.decode(History, {"records": data.get("records")}, str(file))


def load_all(paths: Paths, plan: Plan) -> dict[str, History]:
    """The histories of all metrics of a plan, by metric key."""
    return {metric.key: load(paths, plan, metric.key) for metric in plan.metrics}


def append(paths: Paths, plan: Plan, metric: str, record: AARecord) -> None:
    """Add a record, once per experiment. Atomic, and safe against other harness processes. Raises EvidenceError."""
    file = _file(paths, plan, metric)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EvidenceError(f"cannot make {file.parent}: {error.strerror}") from error
    with FileLock(file.with_suffix(".lock")):
        records = load(paths, plan, metric).records
        if any(one.experiment == record.experiment for one in records):
            return
        history = History((*records, record))
        write_atomically(file, codec.pretty({"schema": SCHEMA, **_key(plan, metric), **codec.encode(history)}), EvidenceError)


def records_of(plan: Plan, samples: Sequence[Sample]) -> dict[str, AARecord]:
    """What a finished experiment says about noise, by metric: from its control, or from an A/A experiment itself; else none."""
    partner = Slot.PATCHED if plan.aa else Slot.CONTROL
    attempts = attempts_of(plan, samples)
    complete = sum(one.state is AttemptState.COMPLETE for one in attempts)
    if partner not in plan.arms or complete < len(plan.generations):
        return {}
    found: dict[str, AARecord] = {}
    for metric in plan.metrics:
        values = ratio_values(plan, attempts, metric.key, partner)
        if values is not None:
            ratios = tuple(generation_ratio(pairs) for pairs in values)
            found[metric.key] = AARecord(plan.id, plan.created, plan.tier, float(np.mean(ratios)), ratios)
    return found


def generation_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """One generation's value: the median log-ratio of its (base, partner) pairs."""
    return statistics.generation_value(statistics.log_ratios([old for old, _ in pairs], [new for _, new in pairs]))


def record_experiment(paths: Paths, plan: Plan, samples: Sequence[Sample]) -> Mapping[str, AARecord]:
    """Store what this experiment says about noise (once, however often it is called); returns it."""
    found = records_of(plan, samples)
    for metric, record in found.items():
        append(paths, plan, metric, record)
    return found
