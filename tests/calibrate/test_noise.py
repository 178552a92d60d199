"""The estimates on simulated processes whose components are known, and on numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.calibrate.noise import alarms_of, clopper_pearson, interval_of, is_alarm, noise_of
from harness.experiments.statistics import minimum_detectable_effect

# Relative tolerance of a standard deviation estimated from so many simulated generations: 4 / sqrt(2 n).
GENERATIONS = 6 * 400
TOLERANCE = 4 / math.sqrt(2 * GENERATIONS)


def simulated(offset, within, *, experiments=400, bias=0.0, seed=1):
    """Pairs of base values: every process has an offset of its own (log), every run an error of its own."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(experiments):
        generations = []
        for _ in range(6):
            one, two = generator.normal(0, offset, 2)
            errors = generator.normal(0, within / math.sqrt(2), (2, 2))
            generations.append(
                tuple((100 * math.exp(one + errors[0, i]), 100 * math.exp(two + bias + errors[1, i])) for i in range(2))
            )
        made.append(tuple(generations))
    return made


@pytest.mark.parametrize(("offset", "within"), [(0.01, 0.002), (0.002, 0.01), (0.005, 0.005)])
def test_the_components_are_found_again(offset, within):
    found = noise_of(simulated(offset, within))
    deviation = math.sqrt(2 * offset**2 + within**2 / 2)
    assert found.generations == GENERATIONS
    assert found.within == pytest.approx(within, rel=TOLERANCE)
    assert found.deviation == pytest.approx(deviation, rel=TOLERANCE)
    assert found.spread == pytest.approx(deviation, rel=TOLERANCE)
    # The offset is a difference of variances, so the small one beside a large `within` is known less well.
    assert found.offset == pytest.approx(offset, rel=TOLERANCE * (1 + (within / offset) ** 2))
    assert abs(found.mean) < 4 * deviation / math.sqrt(GENERATIONS)


def test_processes_without_an_offset_have_none_or_next_to_none():
    found = noise_of(simulated(0.0, 0.01))
    assert found.offset < 0.002
    assert found.within == pytest.approx(0.01, rel=TOLERANCE)


def test_a_slot_that_is_favoured_shows_in_the_mean():
    found = noise_of(simulated(0.005, 0.005, bias=0.004))
    assert found.mean == pytest.approx(0.004, abs=4 * found.deviation / math.sqrt(GENERATIONS))
    assert found.interval.low > 0
    assert found.spread > found.deviation


def test_the_smallest_effect_is_that_of_the_experiments_own_formula():
    found = noise_of(simulated(0.005, 0.005))
    assert dict(found.detectable) == {n: minimum_detectable_effect(found.deviation, n) for n in (6, 10, 20)}
    assert found.detectable[6] > found.detectable[10] > found.detectable[20] > 0


def test_one_pair_a_generation_says_nothing_of_what_is_inside():
    single = [tuple(generation[:1] for generation in one) for one in simulated(0.01, 0.0)]
    found = noise_of(single)
    assert found.within == 0
    assert found.offset == pytest.approx(0.01, rel=TOLERANCE)


def test_by_hand():
    e = math.exp
    # Generation log-ratios 0.02 (pairs 0.01 and 0.03) and -0.01 (pairs -0.02 and 0).
    found = noise_of([(((1.0, e(0.01)), (1.0, e(0.03))), ((1.0, e(-0.02)), (1.0, 1.0)))])
    assert found.mean == pytest.approx(0.005)
    assert found.spread == pytest.approx(math.sqrt((0.02**2 + 0.01**2) / 2))
    assert found.deviation == pytest.approx(0.03 / math.sqrt(2))
    assert found.within == pytest.approx(math.sqrt(0.0004 / 2))
    assert found.offset == pytest.approx(math.sqrt((0.00045 - 0.0002 / 2) / 2))


def test_the_test_alarms_as_often_as_it_says():
    """Six generations: only when all have one sign, 2 of 64 arrangements; the t interval stops about half of those."""
    found = alarms_of(simulated(0.005, 0.005, experiments=2000, seed=3))
    assert 0.005 < found.interval.low < found.interval.high < 2 / 64


def test_a_favoured_slot_alarms_often():
    assert alarms_of(simulated(0.002, 0.002, experiments=50, bias=0.01)).rate > 0.9


def test_an_alarm_by_hand():
    up = tuple(((1.0, 1.0 + step / 1000),) for step in (10, 11, 12, 10, 11, 12))
    assert is_alarm(up)
    assert not is_alarm((*up[:5], ((1.0, 0.99),))), "one generation of another sign: p = 4 / 64"
    assert interval_of(up).low > 0


# From tables of the binomial distribution: 1 - 0.025^(1/40), and the F quantiles that Clopper and Pearson's interval is.
@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [(0, 40, 0.0, 0.0881), (4, 40, 0.0279, 0.2366), (40, 40, 0.9119, 1.0), (1, 10, 0.0025, 0.4450)],
)
def test_clopper_pearson(count, total, low, high):
    found = clopper_pearson(count, total)
    assert (found.low, found.high) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


@pytest.mark.parametrize(("count", "total"), [(0, 0), (3, 2), (-1, 2)])
def test_no_proportion(count, total):
    with pytest.raises(ValueError, match="no proportion"):
        clopper_pearson(count, total)


def test_one_generation_is_no_noise():
    with pytest.raises(ValueError, match="two generations"):
        noise_of([(((1.0, 1.0),),)])
