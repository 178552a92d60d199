"""A stored calibration: every pair of every A/A experiment of one workload on one device."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from harness.calibrate.noise import Noise, Pairs, noise_of
from harness.errors import EvidenceError
from harness.experiments import codec
from harness.experiments.machine import Machine
from harness.files import write_atomically
from harness.paths import Paths
from harness.vocabulary import Engine, Mode, WorkloadKind

__all__ = ["SCHEMA", "Calibration", "Trial", "add", "calibrations", "file_of", "nearest_noise", "read"]

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Trial:
    """One A/A experiment. `values`: metric -> generation -> pair -> (base, second base), in the metric's unit."""

    experiment: str
    # UTC, ISO 8601: when it was planned.
    date: str
    values: Mapping[str, tuple[tuple[tuple[float, ...], ...], ...]]

    def pairs(self, metric: str) -> Pairs:
        return tuple(tuple((pair[0], pair[1]) for pair in generation) for generation in self.values[metric])


@dataclass(frozen=True, slots=True)
class Calibration:
    """What identifies it, and its trials, oldest first."""

    schema: int
    engine: Engine
    kind: WorkloadKind
    workload: str
    # Of the workload and the points that were measured.
    workload_digest: str
    points: tuple[str, ...]
    # As a plan names it: harness.bench.devices.device_fingerprint.
    device: str
    mode: Mode
    # Identity of the arm that ran against itself, by slot-independent digest, and what it holds.
    arm_digest: str
    software: Mapping[str, str]
    machine: Machine
    primary: str
    # Metrics in the order of the report: over all points first, then each point's.
    metrics: Mapping[str, str]
    generations: int
    alpha: float
    trials: tuple[Trial, ...] = ()

    @property
    def key(self) -> dict[str, Any]:
        """What trials of one file have in common; they may be put together only where all of it is the same."""
        return {
            "workload": self.workload,
            "workload_digest": self.workload_digest,
            "device": self.device,
            "mode": self.mode.value,
            "arm": self.arm_digest,
            "generations": self.generations,
        }

    def pairs(self, metric: str) -> tuple[Pairs, ...]:
        """All trials' pairs of one metric."""
        return tuple(one.pairs(metric) for one in self.trials if metric in one.values)


def file_of(paths: Paths, calibration: Calibration) -> Path:
    digest = hashlib.sha256(codec.canonical(calibration.key).encode()).hexdigest()
    return paths.calibration / f"trials-{calibration.workload.replace('/', '-')}-{digest[:12]}.json"


def read(file: Path) -> Calibration:
    """Raises EvidenceError for another schema, a malformed field, or a file that cannot be read."""
    try:
        data = codec.parse(file.read_text(encoding="utf-8"), str(file))
    except OSError as error:
        raise EvidenceError(f"cannot read {file}: {error.strerror}") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise EvidenceError(f"{file} has schema version {schema}, this harness reads {SCHEMA}. Calibrate anew.")
    return codec.decode(Calibration, data, str(file))


def add(paths: Paths, calibration: Calibration, trial: Trial | None = None) -> Calibration:
    """What is stored for this key, with one more trial (once an experiment). Atomic; safe beside other harness processes."""
    file = file_of(paths, calibration)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EvidenceError(f"cannot make {file.parent}: {error.strerror}") from error
    with FileLock(file.with_suffix(".lock")):
        known = read(file) if file.exists() else calibration
        if trial is None or any(one.experiment == trial.experiment for one in known.trials):
            return known
        known = replace(known, trials=(*known.trials, trial))
        write_atomically(file, codec.pretty(known), EvidenceError)
    return known


def calibrations(paths: Paths) -> tuple[Calibration, ...]:
    """All that are stored."""
    return tuple(read(file) for file in sorted(paths.calibration.glob("trials-*.json")))


def nearest_noise(
    paths: Paths, *, metric: str, device: str, mode: Mode, engine: Engine, kind: WorkloadKind
) -> tuple[Calibration, Noise] | None:
    """The calibration of this kind of metric on this device that has most trials; None without one.

    A kernel's time is the same kind of number in every engine, what an engine's script prints is that engine's own.
    """
    fitting = [
        one
        for one in calibrations(paths)
        if (one.device, one.mode, one.kind) == (device, mode, kind)
        and (kind is WorkloadKind.KERNEL or one.engine is engine)
        and len(one.pairs(metric)) > 0
    ]
    if not fitting:
        return None
    best = max(fitting, key=lambda one: len(one.pairs(metric)))
    return best, noise_of(best.pairs(metric), alpha=best.alpha)
