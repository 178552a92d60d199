"""Busy time as the length of a union of intervals: what no sum of kernel times can give, since kernels overlap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["union_length"]


def union_length(start: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    """Length of the union of [start, end) intervals in any order, exact; 0 for none. No end lies before its start."""
    if not start.size:
        return 0
    order = np.argsort(start, kind="stable")
    begin, finish = start[order], end[order]
    # How far everything before reaches: only what lies beyond is new.
    reach = np.maximum.accumulate(finish)
    new = finish.copy()
    new[0] -= begin[0]
    new[1:] -= np.maximum(begin[1:], reach[:-1])
    return int(np.maximum(new, 0).sum())
