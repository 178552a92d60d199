"""A series: an ordered set of patches on one topic, with what a reviewer needs to know about it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from harness.vocabulary import Engine, SeriesStatus

__all__ = ["Claim", "DuplicateCheck", "PullRequestNotes", "Series"]


@dataclass(frozen=True, slots=True)
class DuplicateCheck:
    """The dated search for competing upstream pull requests."""

    date: datetime.date
    links: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """The layers of a claim, each one line with its number: the kernel's time, its share of the step (from a profile), the
    end-to-end change that follows from these two, and the one that was measured.
    """

    kernel: str
    share: str
    predicted: str
    measured: str


@dataclass(frozen=True, slots=True)
class PullRequestNotes:
    """The table [pr] of series.toml: what the page needs and no file has. Texts are "" and the date None until written."""

    # For the title: the number, and the device that evidence must be of ("H200").
    number: str
    device: str
    claim: Claim
    # How the series differs from the open pull requests that the search for duplicates found.
    differs: str
    # A Markdown table: by how much results change against fp32, or that no bit does.
    exactness: str
    # Commands that make the numbers again, and accuracy evaluations that the submitter has to run.
    reproduce: tuple[str, ...]
    evaluations: tuple[str, ...]
    # What was not run or measured; "" when nothing was left out.
    not_run: str
    # Filled by the person who submits: a statement on AI assistance, and when they looked for duplicates themselves.
    ai_assistance: str
    duplicates_checked: datetime.date | None


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
    # None while nobody has begun to write the pull request.
    pr: PullRequestNotes | None = None

    @property
    def id(self) -> str:
        """For example vllm/penalties-bin-counts."""
        return f"{self.engine}/{self.name}"
