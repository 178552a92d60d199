from __future__ import annotations

from collections import Counter

import pytest

from harness.errors import PlanError
from harness.experiments.order import abba, check_order, pairs_of, shuffled, single_pairs
from harness.vocabulary import Slot

LETTERS = {"B": Slot.BASE, "P": Slot.PATCHED, "C": Slot.CONTROL}


def order(text):
    return tuple(LETTERS[letter] for letter in text)


def text(slots):
    return "".join(slot.value[0].upper() for slot in slots)


def test_a_screen_is_two_blocks_that_start_with_different_arms():
    assert text(abba(1, blocks=2, control=False)) == "BPPBPBBP"


def test_the_arm_that_starts_alternates_with_the_generation():
    assert [text(abba(number, blocks=1, control=False)) for number in (1, 2, 3)] == ["BPPB", "PBBP", "BPPB"]


def test_a_control_has_blocks_of_its_own_and_the_first_comparison_alternates():
    found = [text(abba(number, blocks=1, control=True)) for number in (1, 2, 3, 4, 5)]
    assert found == ["BPPBBCCB", "PBBPCBBC", "BCCBBPPB", "CBBCPBBP", "BPPBBCCB"]


def test_process_mode_makes_abba_out_of_two_generations():
    assert [text(single_pairs(number, control=False)) for number in (1, 2, 3, 4)] == ["BP", "PB", "BP", "PB"]
    assert [text(single_pairs(number, control=True)) for number in (1, 2, 3, 4)] == ["BPBC", "PBCB", "BCBP", "CBPB"]


@pytest.mark.parametrize("control", [True, False])
def test_a_straight_drift_favours_no_arm_within_a_generation(control):
    slots = abba(3, blocks=2, control=control)
    for partner in {Slot.PATCHED, Slot.CONTROL} & set(slots):
        pairs = [(2 * index, pair) for index, pair in enumerate(pairs_of(slots)) if partner in pair]
        base = sum(start + pair.index(Slot.BASE) for start, pair in pairs)
        other = sum(start + pair.index(partner) for start, pair in pairs)
        assert base == other


@pytest.mark.parametrize("seed", range(20))
def test_a_random_order_is_balanced_seeded_and_keeps_the_pairs(seed):
    orders = [abba(number, blocks=2, control=True) for number in range(1, 7)]
    drawn = shuffled(orders, seed)
    assert drawn == shuffled(orders, seed)
    check_order(drawn)
    for planned, made in zip(orders, drawn, strict=True):
        assert [set(pair) for pair in pairs_of(planned)] == [set(pair) for pair in pairs_of(made)]


def test_different_seeds_draw_different_orders():
    orders = [abba(number, blocks=2, control=False) for number in range(1, 7)]
    assert len({shuffled(orders, seed) for seed in range(20)}) == 20


@pytest.mark.parametrize("refused", ["BBBBPPPP", "PPPPBBBB", "BBPP", "BPP", "", "BPPC", "BCCP"])
def test_an_order_that_is_not_pairs_is_refused_with_its_false_alarm_rate(refused):
    with pytest.raises(PlanError, match=r"neighbouring runs must be pairs.*33 % of simulated"):
        check_order([order(refused)])


def test_plain_abab_is_refused_with_its_false_alarm_rate():
    with pytest.raises(PlanError, match=r"base comes first in 4 pairs and patched in 0.*20 % of simulated"):
        check_order([order("BPBPBPBP")])


def test_abab_over_generations_is_refused_too():
    with pytest.raises(PlanError, match="must be equal"):
        check_order([order("BP")] * 10)


def test_an_unbalanced_control_is_refused():
    with pytest.raises(PlanError, match="base comes first in 2 pairs and control in 0"):
        check_order([order("BPPBBCBC")])


def test_a_plan_without_the_patched_arm_is_refused():
    with pytest.raises(PlanError, match="never runs the patched arm"):
        check_order([order("BCCB")])


def test_over_a_plan_each_arm_comes_first_equally_often():
    first = Counter(pair[0] for number in range(1, 7) for pair in pairs_of(abba(number, blocks=1, control=False)))
    assert first[Slot.BASE] == first[Slot.PATCHED] == 6
