"""Kits of a few kilobytes: pieces and descriptions shrunk to fit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.bundle.units.UNIT_BYTES", 20_000)
    monkeypatch.setattr("harness.bundle.parts.HEADER_RESERVE", 10_000)
    monkeypatch.setattr("harness.bundle.kit.SMALLEST_PART", 1_000)
