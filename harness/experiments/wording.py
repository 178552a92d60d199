"""Numbers as the reports and reasons write them."""

from __future__ import annotations

import math

__all__ = ["count", "percent", "size"]


def percent(fraction: float, digits: int = 2) -> str:
    """0.0879 -> '8.79 %'."""
    return f"{fraction * 100:.{digits}f} %"


def size(log_ratio: float, *, like: float) -> str:
    """How far a |log-ratio| is off 1, in the direction of the log-ratio `like`, so that the two can be compared as percent."""
    return percent(abs(math.expm1(math.copysign(log_ratio, like))))


def count(number: int, noun: str) -> str:
    """'1 pair', '4 pairs'."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
