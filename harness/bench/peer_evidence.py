"""The stored result of a kernel against its peers: every sample, and what they were measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import EvidenceError
from harness.experiments import codec
from harness.experiments.machine import Machine
from harness.files import write_atomically

__all__ = ["CellSample", "PeerEvidence", "Variant", "read_peer_evidence", "write_peer_evidence"]

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel of a peer file: its role ("ours", "peer" or "ceiling") and what it is."""

    role: str
    what: str


@dataclass(frozen=True, slots=True)
class CellSample:
    """One variant at one point in one round: µs by state, medians of the replays with their extremes."""

    variant: str
    point: str
    generation: int
    # Counted rounds are numbered from 1; a warm-up (0) is kept only where something was wrong with it.
    round: int
    times: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]
    # Largest relative error against the fp32 reference.
    error: float
    # Why the variant has no such point; empty where it has.
    skipped: str
    # Why the sample does not count; empty where it does.
    problem: str


@dataclass(frozen=True, slots=True)
class PeerEvidence:
    # UTC, ISO 8601.
    written: str
    kernel: str
    # sha256 of the peer file.
    file_digest: str
    device: str
    machine: Machine
    # Versions of what ran: torch, python, engines.
    software: Mapping[str, str]
    points: tuple[str, ...]
    # Bytes that each point must move.
    moved: Mapping[str, int]
    variants: Mapping[str, Variant]
    # Variants that did not run, and why.
    missing: Mapping[str, str]
    generations: int
    seed: int
    replays: int
    samples: tuple[CellSample, ...]


def write_peer_evidence(path: Path, evidence: PeerEvidence) -> None:
    """Store as JSON, whole or not at all. Raises EvidenceError."""
    write_atomically(path, codec.pretty({"schema": SCHEMA, "evidence": codec.encode(evidence)}), EvidenceError)


def read_peer_evidence(path: Path) -> PeerEvidence:
    """Read strictly. Raises EvidenceError for another schema version or a malformed field."""
    try:
        data = codec.parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"cannot read evidence {path}: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else "none"
        raise EvidenceError(f"{path} has schema version {found}, this harness reads {SCHEMA}")
    return codec.decode(PeerEvidence, data.get("evidence"), str(path))
