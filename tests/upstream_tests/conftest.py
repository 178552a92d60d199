from __future__ import annotations

from tests.upstream_fakes import person

__all__ = ["person"]
