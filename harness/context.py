"""What every command gets: where things are and how to talk to the person."""

from __future__ import annotations

from dataclasses import dataclass

from harness.paths import Paths
from harness.progress import Progress

__all__ = ["Context"]


@dataclass(frozen=True, slots=True)
class Context:
    paths: Paths
    progress: Progress
