from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from harness.experiments import statistics
from harness.experiments.statistics import Interval


def test_log_ratio_is_patched_over_base():
    assert statistics.log_ratios([2.0, 4.0], [1.0, 8.0]).tolist() == pytest.approx([-math.log(2), math.log(2)])


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_log_ratio_needs_positive_finite_values(bad):
    with pytest.raises(ValueError, match="positive, finite"):
        statistics.log_ratios([1.0, bad], [1.0, 1.0])


def test_pairs_must_match():
    with pytest.raises(ValueError, match="2 and 1"):
        statistics.log_ratios([1.0, 2.0], [1.0])


def test_a_generation_counts_by_the_median_of_its_pairs():
    assert statistics.generation_value(np.array([0.01, 0.02, 5.0])) == 0.02


def enumerated(values):
    """The sign-flip p by definition, the slow way."""
    observed = abs(np.mean(values))
    means = [abs(np.mean(np.multiply(values, signs))) for signs in itertools.product((-1, 1), repeat=len(values))]
    return sum(mean >= observed - 1e-12 for mean in means) / len(means)


@pytest.mark.parametrize("count", [2, 6, 9])
def test_the_sign_flip_p_is_that_of_full_enumeration(count):
    values = np.random.default_rng(count).normal(0.4, 1, size=count)
    assert statistics.sign_flip_p(values) == pytest.approx(enumerated(values))


def test_all_of_one_sign_gives_the_smallest_p():
    assert statistics.sign_flip_p(np.array([0.1, 0.2, 0.3, 0.1, 0.2, 0.4])) == statistics.smallest_p(6) == 2 / 64


def test_no_difference_at_all_gives_p_one():
    assert statistics.sign_flip_p(np.zeros(6)) == 1.0


def test_more_than_sixteen_values_draw_seeded_patterns():
    values = np.random.default_rng(3).normal(0.5, 1, size=20)
    p = statistics.sign_flip_p(values)
    assert p == statistics.sign_flip_p(values)
    assert p == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.02)


def test_t_interval_is_that_of_scipy():
    values = np.random.default_rng(4).normal(0.1, 1, size=8)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = statistics.t_interval(values, 0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_an_interval_needs_two_values():
    with pytest.raises(ValueError, match="two values"):
        statistics.t_interval(np.array([1.0]), 0.95)


def test_holm_against_the_worked_example_of_r():
    # R gives 0.03 0.06 0.06 0.02 for p.adjust with method holm.
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))


def test_holm_never_passes_one_and_takes_nothing():
    assert statistics.holm([0.6, 0.7]) == (1.0, 1.0)
    assert statistics.holm([]) == ()


def test_minimum_detectable_effect_by_hand():
    # t(0.975, 9) = 2.2622, t(0.8, 9) = 0.8834; s = 1 %, n = 10
    assert statistics.minimum_detectable_effect(0.01, 10) == pytest.approx((2.2622 + 0.8834) * 0.01 / math.sqrt(10), rel=1e-4)


@pytest.mark.parametrize(("spread", "effect"), [(0.1, 0.02), (0.01, 0.01), (0.005, 0.002)])
def test_needed_generations_is_the_first_that_is_enough(spread, effect):
    needed = statistics.needed_generations(spread, effect)
    assert statistics.minimum_detectable_effect(spread, needed) <= effect
    assert statistics.minimum_detectable_effect(spread, needed - 1) > effect


def test_needed_generations_is_never_fewer_than_the_test_needs_nor_endless():
    assert statistics.needed_generations(1e-6, 0.5) == 6
    assert statistics.needed_generations(0.0, 0.5) == 6
    assert statistics.needed_generations(1.0, 1e-9) == 100_000


def test_minimum_detectable_effect_is_found_in_four_of_five_cases():
    generator = np.random.default_rng(5)
    effect = statistics.minimum_detectable_effect(0.01, 10)
    found = stats.ttest_1samp(generator.normal(effect, 0.01, size=(20_000, 10)), 0, axis=1).pvalue <= 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.9901, 1.0099, True), (0.9899, 1.0, False), (1.0, 1.0101, False), (1.002, 1.008, True)],
)
def test_equivalent_means_within_the_margin_as_a_ratio(low, high, expected):
    assert statistics.is_equivalent(Interval(math.log(low), math.log(high)), 0.01) is expected


def test_geometric_mean_and_root_mean_square():
    assert statistics.geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert statistics.root_mean_square([0.03, -0.04]) == pytest.approx(math.sqrt(0.00125))


def test_median_interval_covers_the_median_as_often_as_it_says():
    generator = np.random.default_rng(6)
    hits = 0
    for _ in range(400):
        _, interval = statistics.median_interval(generator.exponential(size=9))
        hits += interval.low <= math.log(2) <= interval.high
    assert 0.93 <= hits / 400 <= 1.0


def test_median_interval_of_six_is_their_range_and_of_five_is_none():
    values = [3.0, 1.0, 2.0, 6.0, 5.0, 4.0]
    assert statistics.median_interval(values) == (3.5, Interval(1.0, 6.0))
    assert statistics.median_interval(values[:5]) == (3.0, None)
    assert statistics.median_interval([2.0]) == (2.0, None)


def test_two_groups_are_seen_and_ordinary_noise_is_not():
    generator = np.random.default_rng(7)
    assert statistics.two_groups([*generator.normal(30, 0.1, 12), *generator.normal(33, 0.1, 12)])
    assert sum(statistics.two_groups(generator.normal(30, 0.1, 24)) for _ in range(500)) == 0
    assert not statistics.two_groups([1.0] * 20 + [5.0])
    assert not statistics.two_groups([1.0] * 10)
    assert not statistics.two_groups([])
