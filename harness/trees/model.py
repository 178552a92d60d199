"""A tree: a git worktree at a pin, or at a pin with a series applied, or a checkout of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.vocabulary import Engine, Source, TreeOrigin

__all__ = ["Tree"]


@dataclass(frozen=True, slots=True)
class Tree:
    engine: Engine
    # Version of the pin that `base` is.
    pin: str
    path: Path
    # Folder inside `path` that goes on the import path: "" (vllm, flashinfer) or "python" (sglang).
    import_root: str
    base: str
    tip: str
    source: Source
    origin: TreeOrigin
    # What was asked for: "" for a base tree, else the series id, the ref or the path.
    label: str
    # Hash of uncommitted changes (PATH trees only), so that evidence names exactly what ran.
    changes: str | None = None

    @property
    def import_path(self) -> Path:
        return self.path / self.import_root if self.import_root else self.path
