"""Puts the fakes of the experiments and reports on the import path (pytest's importlib mode does not)."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "experiments"), str(HERE.parent / "reports")]
