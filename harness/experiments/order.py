"""The order of the runs. It decides more than the test does: drift, warm-up and being first must fall on both arms alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from harness.errors import PlanError
from harness.vocabulary import Slot

__all__ = ["Ordering", "abba", "check_order", "pairs_of", "shuffled", "single_pairs"]


class Ordering(StrEnum):
    """abba: blocks B P P B and P B B P in turn. random: a seeded draw in which each arm comes first in half of the pairs."""

    ABBA = "abba"
    RANDOM = "random"


def _partners(generation: int, *, control: bool) -> tuple[Slot, ...]:
    """Which comparison comes first changes every second generation, so that it does not go with who is first in a pair."""
    partners = (Slot.PATCHED, Slot.CONTROL) if control else (Slot.PATCHED,)
    return partners if (generation - 1) // 2 % 2 == 0 else partners[::-1]


def abba(generation: int, *, blocks: int, control: bool) -> tuple[Slot, ...]:
    """The order of one generation (numbered from 1): per block B P P B, with a control also B C C B.

    The arm that starts changes with every block and with every generation, so a drift that is not a straight line cancels too.
    """
    order: list[Slot] = []
    for block in range(blocks):
        for partner in _partners(generation, control=control):
            first, second = (Slot.BASE, partner) if (generation - 1 + block) % 2 == 0 else (partner, Slot.BASE)
            order += [first, second, second, first]
    return tuple(order)


def single_pairs(generation: int, *, control: bool) -> tuple[Slot, ...]:
    """Process mode: one pair a generation (and one control pair). Generations 1 and 2 together are B P P B."""
    order: list[Slot] = []
    for partner in _partners(generation, control=control):
        order += [Slot.BASE, partner] if generation % 2 == 1 else [partner, Slot.BASE]
    return tuple(order)


def shuffled(orders: Sequence[tuple[Slot, ...]], seed: int) -> tuple[tuple[Slot, ...], ...]:
    """The same pairs, with who comes first in each drawn at random; over the plan each arm stays first in half of the pairs."""
    generator = np.random.default_rng(seed)
    pairs = [(number, pair) for number, order in enumerate(orders) for pair in pairs_of(order)]
    drawn: list[list[Slot]] = [[] for _ in orders]
    base_first: dict[Slot, list[bool]] = {}
    slots: tuple[Slot, ...] = (Slot.PATCHED, Slot.CONTROL)
    for partner in slots:
        total = sum(partner in pair for _, pair in pairs)
        base_first[partner] = [bool(one) for one in generator.permutation(np.arange(total) % 2 == 0)]
    for number, pair in pairs:
        partner = partner_of(pair)
        drawn[number] += [Slot.BASE, partner] if base_first[partner].pop() else [partner, Slot.BASE]
    return tuple(tuple(order) for order in drawn)


def pairs_of(order: Sequence[Slot]) -> tuple[tuple[Slot, Slot], ...]:
    """Neighbouring runs, two by two."""
    return tuple(zip(order[::2], order[1::2], strict=False))


def partner_of(pair: tuple[Slot, Slot]) -> Slot:
    """The arm that base is compared with in this pair."""
    return pair[1] if pair[0] is Slot.BASE else pair[0]


def check_order(orders: Sequence[Sequence[Slot]]) -> None:
    """Refuse an order that would call noise a result. `orders` has one entry for each generation of the plan.

    Accepted: neighbours form pairs of base and one other arm, and over the plan each arm of a comparison comes first equally
    often (which also puts both at the same mean position). The rates in the messages are from
    tests/experiments/test_false_alarms.py: no true change, but drift, a warm-up ramp and a first-in-pair effect;
    paired t test at 5 %.

    Raises PlanError.
    """
    first: Counter[tuple[Slot, Slot]] = Counter()
    partners: set[Slot] = set()
    for number, order in enumerate(orders, start=1):
        letters = "".join(slot.value[0].upper() for slot in order)
        paired = (
            len(order) > 0
            and len(order) % 2 == 0
            and all((Slot.BASE in pair) and len(set(pair)) == 2 for pair in pairs_of(order))
        )
        if not paired:
            raise PlanError(
                f"generation {number} has the order {letters or '(empty)'}: neighbouring runs must be pairs of base and one "
                "other arm. An order like BBBBPPPP gives all drift to one arm: with no change at all it reported one in about "
                "33 % of simulated experiments, where 5 % is the limit. Use ABBA blocks (B P P B) or a seeded random order."
            )
        for pair in pairs_of(order):
            partner = partner_of(pair)
            partners.add(partner)
            first[partner, pair[0]] += 1
    if Slot.PATCHED not in partners:
        raise PlanError("the plan never runs the patched arm; each generation needs pairs of base and patched")
    for partner in sorted(partners):
        base, other = first[partner, Slot.BASE], first[partner, partner]
        if base != other:
            raise PlanError(
                f"base comes first in {base} pairs and {partner} in {other}: the two must be equal. Plain ABAB gives the "
                "first-in-pair effect to one arm: with no change at all it reported one in about 20 % of simulated "
                "experiments, where 5 % is the limit. Use ABBA blocks (in process mode an even number of generations) or a "
                "balanced random order."
            )
