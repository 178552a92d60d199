"""List a result among the evidence of its series."""

from __future__ import annotations

import tomlkit

from harness.errors import SeriesError
from harness.files import write_atomically
from harness.series.model import Series

__all__ = ["list_evidence"]


def list_evidence(series: Series, name: str) -> None:
    """Add a file to `evidence` in series.toml; everything else there stays as it is. Raises SeriesError."""
    file = series.directory / "series.toml"
    document = tomlkit.parse(file.read_text(encoding="utf-8"))
    evidence = document["evidence"]
    if name not in evidence:
        evidence.append(name)
        write_atomically(file, tomlkit.dumps(document), SeriesError)
