"""The evidence file: plan, hashes, environment, every raw sample and the decision, so that anyone can judge again."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.arms.model import Arm
from harness.errors import EvidenceError
from harness.experiments import codec
from harness.experiments.calibration import History
from harness.experiments.machine import Machine
from harness.experiments.plan import Plan
from harness.experiments.samples import Sample
from harness.experiments.verdict import Decision
from harness.files import write_atomically
from harness.vocabulary import Device, Engine, Slot, Source, TreeOrigin
from harness.workloads.kernel_model import KernelWorkload
from harness.workloads.model import EngineWorkload

__all__ = ["SCHEMA", "ArmRecord", "Evidence", "TreeRecord", "build_evidence", "describe_arm", "read_evidence", "write_evidence"]

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class TreeRecord:
    """One tree of an arm, without the place where it lay."""

    engine: Engine
    pin: str
    base: str
    tip: str
    source: Source
    origin: TreeOrigin
    label: str
    # Hash of uncommitted changes, for a checkout of the user's own.
    changes: str | None


@dataclass(frozen=True, slots=True)
class ArmRecord:
    """What an arm was made of."""

    name: str
    digest: str
    trees: tuple[TreeRecord, ...]
    environment: str
    environment_digest: str
    device: Device
    packages: Mapping[str, str]
    # Number of linked files, and sha256 over their paths and hashes.
    links: int
    links_digest: str
    # Environment variables; a value that is a path on the machine is written as "(path)".
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Evidence:
    schema: int
    # UTC, ISO 8601.
    written: str
    plan_digest: str
    plan: Plan
    # The whole workload that the plan has the digest of. A real model is named by its folder, not by the place of that.
    workload: EngineWorkload | KernelWorkload
    machine: Machine
    arms: Mapping[Slot, ArmRecord]
    # The stored A/A records that the decision was made with, by metric.
    history: Mapping[str, History]
    samples: tuple[Sample, ...]
    decision: Decision


def describe_arm(arm: Arm) -> ArmRecord:
    """An arm as it goes into evidence."""
    return ArmRecord(
        name=arm.name,
        digest=arm.digest,
        trees=tuple(
            TreeRecord(tree.engine, tree.pin, tree.base, tree.tip, tree.source, tree.origin, tree.label, tree.changes)
            for tree in arm.trees
        ),
        environment=arm.environment.name,
        environment_digest=arm.environment.digest,
        device=arm.environment.device,
        packages=dict(sorted(arm.environment.packages.items())),
        links=len(arm.links),
        links_digest=hashlib.sha256(codec.canonical(dict(arm.links)).encode()).hexdigest(),
        variables={name: "(path)" if "/" in value else value for name, value in sorted(arm.variables.items())},
    )


def build_evidence(
    plan: Plan,
    samples: Sequence[Sample],
    decision: Decision,
    *,
    workload: EngineWorkload | KernelWorkload,
    machine: Machine,
    arms: Mapping[Slot, Arm],
    history: Mapping[str, History],
    now: datetime.datetime | None = None,
) -> Evidence:
    """Put together what write_evidence stores and the renderers show."""
    moment = (now or datetime.datetime.now(datetime.UTC)).astimezone(datetime.UTC)
    return Evidence(
        schema=SCHEMA,
        written=moment.isoformat(timespec="seconds"),
        plan_digest=plan.digest,
        plan=plan,
        workload=_without_places(workload),
        machine=machine,
        arms={slot: describe_arm(arm) for slot, arm in arms.items()},
        history=dict(history),
        samples=tuple(samples),
        decision=decision,
    )


def _without_places(workload: EngineWorkload | KernelWorkload) -> EngineWorkload | KernelWorkload:
    if isinstance(workload, KernelWorkload):
        return workload
    return dataclasses.replace(workload, model=Path(workload.model).name)


def write_evidence(path: Path, evidence: Evidence) -> None:
    """Store as JSON, whole or not at all. Raises EvidenceError; the samples in the experiment's folder are not touched."""
    write_atomically(path, codec.pretty(evidence), EvidenceError)


def read_evidence(path: Path) -> Evidence:
    """Read strictly. Raises EvidenceError for garbage, another schema version, a malformed field, or a changed plan."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"cannot read evidence {path}: {error}") from error
    data = codec.parse(text, str(path))
    if not isinstance(data, dict) or "schema" not in data:
        raise EvidenceError(f"{path} is not an evidence file: it names no schema version")
    if data["schema"] != SCHEMA:
        raise EvidenceError(
            f"{path} has schema version {data['schema']}, this harness reads {SCHEMA}. Use the version that wrote it, "
            "or measure again."
        )
    evidence = codec.decode(Evidence, data, str(path))
    if evidence.plan.digest != evidence.plan_digest:
        raise EvidenceError(f"{path}: the plan was changed after the experiment (its digest is not the stored one)")
    return evidence
