"""Whether base and patched generated the same text is told beside every verdict, and never changes it."""

from __future__ import annotations

import dataclasses

import pytest
from experiment_fakes import paths_in, plan_of, samples_of

from harness.experiments.codec import canonical
from harness.experiments.notes import notes_of
from harness.experiments.samples import attempts_of
from harness.experiments.store import ExperimentStore, read_experiment
from harness.experiments.verdict import decide
from harness.runs.model import GuardReading
from harness.vocabulary import Guard, GuardState, Slot, Tier, Verdict

TEXT = f"16 texts, sha256 {'a' * 64}"
OTHER = f"16 texts, sha256 {'b' * 64}"


def with_text(one, text):
    """The sample with what it generated; "" for a script that does not keep it."""
    reading = GuardReading(Guard.OUTPUTS, GuardState.PASSED if text else GuardState.ABSENT, text or "not kept")
    return dataclasses.replace(one, guards=(*one.guards, reading))


def made(plan, text=lambda one: TEXT):
    """All samples of a plan; every pair has prompts of its own, and so has its text."""
    samples = samples_of(plan, lambda generation, position, slot: (30.0 if slot is Slot.PATCHED else 33.0) + generation / 100)
    return [with_text(one, text(one) and f"{text(one)}{one.seed}") for one in samples]


def outputs(plan, samples):
    return [one for one in notes_of(plan, attempts_of(plan, samples)) if "outputs" in one]


def test_the_same_text_in_every_pair():
    confirm, screen = plan_of(), plan_of(Tier.SCREEN)
    # Two of the four pairs of a generation are base with patched, the others base with control.
    assert outputs(confirm, made(confirm)) == ["outputs: the same in 12 of 12 pairs"]
    assert outputs(screen, made(screen)) == ["outputs: the same in 4 of 4 pairs"]


def test_one_pair_that_differs_is_named_and_the_verdict_stays():
    plan = plan_of(control=False)
    turn = next(one for one in plan.generation(2).turns if one.slot is Slot.PATCHED)
    samples = made(plan, lambda one: OTHER if (one.generation, one.position) == (2, turn.position) else TEXT)
    (note,) = outputs(plan, samples)
    positions = sorted(one.position for one in plan.generation(2).turns if one.pair == turn.pair)
    assert note == (
        "outputs: the same in 11 of 12 pairs; base and patched DIFFER in what they generate from the same prompts, "
        f"first in generation 2, runs {positions[0]} and {positions[1]}"
    )
    assert decide(plan, samples).verdict is Verdict.FASTER
    assert note in decide(plan, samples).notes


@pytest.mark.parametrize(("control", "same"), [(TEXT, 12), (OTHER, 0)])
def test_a_control_tells_whether_the_engine_itself_differs(control, same):
    plan = plan_of()
    text = {Slot.BASE: TEXT, Slot.PATCHED: OTHER, Slot.CONTROL: control}
    (note,) = outputs(plan, made(plan, lambda one: text[one.slot]))
    assert note.startswith("outputs: the same in 0 of 12 pairs; base and patched DIFFER")
    assert note.endswith(f"; base and control, which are one arm: the same in {same} of 12 pairs")


def test_a_control_that_differs_alone_is_no_difference_of_the_arms():
    plan = plan_of()
    assert outputs(plan, made(plan, lambda one: OTHER if one.slot is Slot.CONTROL else TEXT)) == [
        "outputs: the same in 12 of 12 pairs"
    ]


def test_a_script_that_keeps_no_text_is_told_once():
    plan = plan_of()
    assert outputs(plan, made(plan, lambda one: "")) == ["outputs: not compared in 12 of 12 pairs: no text was kept"]


def test_pairs_without_text_are_counted_apart():
    plan = plan_of(control=False)
    samples = made(plan, lambda one: "" if (one.generation, one.position) == (1, 1) else TEXT)
    assert outputs(plan, samples) == [
        "outputs: the same in 11 of 11 pairs",
        "outputs: not compared in 1 of 12 pairs: no text was kept",
    ]


def test_an_unfinished_generation_is_not_compared():
    plan = plan_of(control=False)
    assert outputs(plan, made(plan)[:-1]) == ["outputs: the same in 10 of 10 pairs"]


def test_samples_from_before_outputs_were_recorded_load_and_say_nothing(tmp_path):
    plan = plan_of()
    old = (GuardReading(Guard.TOKENS, GuardState.PASSED, "read 40 and wrote 80 tokens, asked for 40 and 80; outputs 0123"),)
    with ExperimentStore.create(paths_in(tmp_path), plan) as store:
        for one in samples_of(plan, lambda generation, position, slot: 30.0):
            store.append(dataclasses.replace(one, guards=old))
    stored, samples = read_experiment(paths_in(tmp_path), plan.id)
    assert "outputs 0123" in canonical(samples)
    assert outputs(stored, samples) == []
