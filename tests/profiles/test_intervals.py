"""The union of intervals against a count of covered points."""

import random

import numpy as np
import pytest

from harness.profiles.intervals import union_length


def _union(pairs: list[tuple[int, int]]) -> int:
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return union_length(array[:, 0], array[:, 1])


@pytest.mark.parametrize(
    ("pairs", "length"),
    [
        ([], 0),
        ([(5, 5)], 0),
        ([(0, 10)], 10),
        ([(0, 10), (10, 20)], 20),
        ([(0, 10), (2, 3), (4, 12)], 12),
        ([(20, 30), (0, 10)], 20),
        ([(0, 100), (10, 20), (30, 40), (90, 110)], 110),
    ],
)
def test_known(pairs: list[tuple[int, int]], length: int) -> None:
    assert _union(pairs) == length


def test_random_intervals_cover_what_their_points_cover() -> None:
    random.seed(1)
    for _ in range(200):
        pairs = [
            (start, start + random.randrange(12)) for start in (random.randrange(60) for _ in range(random.randrange(1, 15)))
        ]
        assert _union(pairs) == len({point for start, end in pairs for point in range(start, end)})


def test_exact_where_doubles_are_not() -> None:
    # Timestamps of real exports lie above 2**60 ns; a double there has steps of 128 ns.
    start = 2**60 + 1
    assert _union([(start, start + 3), (start + 2, start + 5)]) == 5
