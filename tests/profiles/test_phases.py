"""Texts of the engines' step ranges, and which step a launch belongs to."""

import numpy as np
import pytest

from harness.profiles.phases import PHASES, StepRange, phase_of, timeline
from harness.vocabulary import Phase


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("execute_context_1(1024)_generation_0(0)", Phase.PREFILL),
        ("execute_context_2(512)_generation_30(30)", Phase.PREFILL),
        ("execute_context_0(0)_generation_32(32)", Phase.DECODE),
        ("execute_context_0(0)_generation_0(0)", Phase.OTHER),
        ("step[EXTEND bs=1 toks=1024]", Phase.PREFILL),
        ("step[MIXED bs=4]", Phase.PREFILL),
        ("step[DECODE bs=8]", Phase.DECODE),
        ("step[TARGET_VERIFY bs=8]", Phase.DECODE),
        ("step[IDLE bs=0]", Phase.OTHER),
        ("decode", Phase.DECODE),
        ("Prefill 3", Phase.PREFILL),
        ("upkernel:decode", Phase.DECODE),
        ("aten::mm, op_id = 12", None),
        ("decoder layer 3", None),
        ("scheduler.run_batch", None),
        ("", None),
    ],
)
def test_text(text: str, phase: Phase | None) -> None:
    assert phase_of(text) is phase


def _at(steps: list[StepRange], *times: int) -> list[tuple[Phase, bool]]:
    phase, between = timeline(steps).at(np.array(times, dtype=np.int64))
    return [(PHASES[one], bool(two)) for one, two in zip(phase, between, strict=True)]


def test_launches_in_between_and_before_steps() -> None:
    steps = [StepRange(1, 100, 200, Phase.PREFILL), StepRange(1, 300, 400, Phase.DECODE)]
    assert _at(steps, 99, 100, 199, 200, 299, 300, 1000) == [
        (Phase.UNATTRIBUTED, False),
        (Phase.PREFILL, False),
        (Phase.PREFILL, False),
        (Phase.PREFILL, True),
        (Phase.PREFILL, True),
        (Phase.DECODE, False),
        (Phase.DECODE, True),
    ]


def test_the_innermost_of_nested_steps_counts() -> None:
    steps = [StepRange(1, 0, 100, Phase.PREFILL), StepRange(1, 20, 40, Phase.DECODE)]
    assert _at(steps, 10, 30, 50, 150) == [
        (Phase.PREFILL, False),
        (Phase.DECODE, False),
        (Phase.PREFILL, False),
        (Phase.PREFILL, True),
    ]


def test_steps_that_touch() -> None:
    steps = [StepRange(1, 10, 20, Phase.PREFILL), StepRange(1, 20, 30, Phase.DECODE)]
    assert _at(steps, 19, 20) == [(Phase.PREFILL, False), (Phase.DECODE, False)]
