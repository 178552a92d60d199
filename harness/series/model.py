"""A series: an ordered set of patches on one topic, with what a reviewer needs to know about it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from harness.vocabulary import Engine, SeriesStatus

__all__ = ["DuplicateCheck", "Series"]


@dataclass(frozen=True, slots=True)
class DuplicateCheck:
    """The dated search for competing upstream pull requests."""

    date: datetime.date
    links: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """patches/<engine>/<name>/series.toml and the patch files beside it."""

    engine: Engine
    name: str
    directory: Path
    title: str
    why: str
    links: tuple[str, ...]
    # The series it stacks on, as ids ("vllm/other"), applied first and in this order.
    after: tuple[str, ...]
    # None while nobody has looked (a draft).
    duplicates: DuplicateCheck | None
    status: SeriesStatus
    status_date: datetime.date
    # Version of the bench pin that the patches in `directory` are for; ports are for other pins (ports/<pin>/).
    pin: str
    ports: tuple[str, ...]
    workloads: tuple[str, ...]
    upstream_tests: tuple[str, ...]
    evidence: tuple[str, ...]
    # True when compiled sources change, so that an arm must be built.
    build: bool
    # What makes the series unnecessary.
    removal: str
    # The patch files for the bench pin, in order.
    patches: tuple[Path, ...]

    @property
    def id(self) -> str:
        """For example vllm/penalties-bin-counts."""
        return f"{self.engine}/{self.name}"
