from __future__ import annotations

import dataclasses
import math

import pytest
from experiment_fakes import THROUGHPUT, TPOT, TTFT, plan_of, sample, samples_of

from harness.errors import EvidenceError
from harness.experiments.calibration import AARecord, History
from harness.experiments.verdict import DeviceNoise, decide
from harness.runs.model import GuardReading
from harness.vocabulary import ExitCode, Guard, GuardState, Outcome, ScreenSign, Slot, Tier, Verdict

NOISE = (0.001, -0.0005, 0.0007, -0.001, 0.0004, -0.0002)


def values(ratio, *, control=1.0, base=33.0, noise=NOISE):
    """Each generation's ratio is off by its own noise; generations number 1 to 6."""
    factor = {Slot.BASE: 1.0, Slot.PATCHED: ratio, Slot.CONTROL: control}
    return lambda generation, _position, slot: (
        base * factor[slot] * (1.0 if slot is Slot.BASE else math.exp(noise[(generation - 1) % len(noise)]))
    )


def aa(*ratios, tier=Tier.CONFIRM):
    return History(tuple(AARecord(f"old-{index}", "2026-11-01", tier, one, (one, one)) for index, one in enumerate(ratios)))


def test_a_lower_latency_is_faster_and_a_higher_one_slower():
    plan = plan_of()
    faster, slower = decide(plan, samples_of(plan, values(0.9))), decide(plan, samples_of(plan, values(1.1)))
    assert (faster.verdict, faster.exit_code) == (Verdict.FASTER, ExitCode.OK)
    assert (slower.verdict, slower.exit_code) == (Verdict.SLOWER, ExitCode.SLOWER)


def test_a_higher_throughput_is_faster_and_a_lower_one_slower():
    plan = plan_of(primary=THROUGHPUT)
    assert decide(plan, samples_of(plan, values(1.1))).verdict is Verdict.FASTER
    assert decide(plan, samples_of(plan, values(0.9))).verdict is Verdict.SLOWER


def test_the_numbers_of_a_verdict():
    plan = plan_of()
    found = decide(plan, samples_of(plan, values(0.9))).primary
    mean = sum(NOISE) / 6
    spread = math.sqrt(sum((one - mean) ** 2 for one in NOISE) / 5)
    half = 2.570582 * spread / math.sqrt(6)
    assert found.ratio == pytest.approx(0.9 * math.exp(mean))
    assert (found.low, found.high) == pytest.approx((found.ratio * math.exp(-half), found.ratio * math.exp(half)))
    assert (found.p, found.n) == (2 / 64, 6)
    assert found.mde == pytest.approx(math.expm1((2.570582 + 0.919544) * spread / math.sqrt(6)), rel=1e-4)
    assert found.control == pytest.approx(math.exp(mean))


def test_a_narrow_interval_around_one_is_equivalent():
    plan = plan_of()
    decision = decide(plan, samples_of(plan, values(1.0)))
    assert (decision.verdict, decision.exit_code) == (Verdict.EQUIVALENT, ExitCode.OK)


def test_a_wide_interval_is_inconclusive_with_what_it_would_take():
    plan = plan_of()
    noise = (0.05, -0.04, 0.06, -0.05, 0.03, -0.02)
    decision = decide(plan, samples_of(plan, values(0.98, noise=noise)))
    assert (decision.verdict, decision.exit_code) == (Verdict.INCONCLUSIVE, ExitCode.INCONCLUSIVE)
    # s = 4.7 %, effect 1.5 %: (1.96 + 0.84)^2 * (4.7 / 1.5)^2 is about 76, a little more with t in place of z.
    assert 70 < decision.needed < 100
    assert any(f"needs about {decision.needed} generations" in one for one in decision.reasons)
    assert any("find an effect of" in one for one in decision.reasons)


def test_an_effect_below_the_control_of_this_plan_is_no_verdict():
    plan = plan_of()
    assert decide(plan, samples_of(plan, values(0.98, control=1.01))).verdict is Verdict.FASTER
    blocked = decide(plan, samples_of(plan, values(0.98, control=1.03)))
    assert blocked.verdict is Verdict.INCONCLUSIVE
    assert blocked.largest_aa == pytest.approx(math.log(1.03), abs=1e-3)


def test_an_effect_below_a_stored_confirm_control_is_no_verdict():
    plan = plan_of()
    made = samples_of(plan, values(0.98))
    assert decide(plan, made, {TPOT.key: aa(0.015)}).verdict is Verdict.FASTER
    blocked = decide(plan, made, {TPOT.key: aa(0.001, -0.03)})
    assert (blocked.verdict, blocked.aa_count) == (Verdict.INCONCLUSIVE, 3)


def test_a_stored_screen_does_not_stand_for_a_whole_experiment():
    plan = plan_of()
    assert decide(plan, samples_of(plan, values(0.98)), {TPOT.key: aa(0.03, tier=Tier.SCREEN)}).verdict is Verdict.FASTER


def test_an_experiment_is_not_judged_by_its_own_record():
    plan = plan_of(aa=True)
    history = History((AARecord(plan.id, plan.created, Tier.CONFIRM, 0.5, (0.5,)),))
    assert decide(plan, samples_of(plan, values(0.98)), {TPOT.key: history}).verdict is Verdict.FASTER


def test_equivalence_is_not_shown_where_no_change_moves_more_than_the_margin():
    plan = plan_of()
    assert decide(plan, samples_of(plan, values(1.0)), {TPOT.key: aa(0.02)}).verdict is Verdict.INCONCLUSIVE


def test_a_p_that_is_too_large_is_no_verdict_even_with_a_large_effect():
    plan = plan_of(control=False)
    decision = decide(plan, samples_of(plan, values(0.9, noise=(0.2, 0.15, -0.02, 0.01, -0.2, -0.1))))
    assert decision.primary.p > 0.05
    assert decision.verdict is Verdict.INCONCLUSIVE


def test_an_interval_that_leaves_out_one_with_a_p_above_alpha_is_no_verdict():
    # One value of the other sign: p is 4/64, while the t interval is far from 1.
    plan = plan_of(control=False)
    decision = decide(plan, samples_of(plan, values(1.0, noise=(-0.02, -0.021, -0.019, -0.02, -0.02, 0.001))))
    assert decision.primary.p == 4 / 64
    assert decision.primary.high < 1
    assert decision.verdict is Verdict.INCONCLUSIVE


def test_the_smallest_p_with_an_interval_that_includes_one_is_no_verdict():
    # Six values of one sign, one of them far out: p is 2/64, the t interval still includes 1.
    plan = plan_of(control=False)
    noise = (-0.001, -0.001, -0.001, -0.001, -0.001, -0.2)
    decision = decide(plan, samples_of(plan, values(1.0, noise=noise)))
    assert decision.primary.p == 2 / 64
    assert decision.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("outcome", [one for one in Outcome if one not in {Outcome.OK, Outcome.INTERRUPTED}])
@pytest.mark.parametrize("slot", [Slot.BASE, Slot.PATCHED])
def test_a_failed_run_in_either_arm_voids_the_experiment_and_shows_its_log(outcome, slot):
    plan = plan_of()
    made = samples_of(plan, values(0.9))
    index = next(number for number, one in enumerate(made) if one.slot is slot and one.generation == 3)
    made[index] = dataclasses.replace(made[index], outcome=outcome, metrics={}, detail="first\nKilled", log="runs/3/2/log.txt")
    decision = decide(plan, made)
    assert (decision.verdict, decision.exit_code) == (Verdict.VOID, ExitCode.VOID)
    assert decision.primary is None
    (failure,) = decision.failures
    assert f"generation 3, run {made[index].position} ({slot}): {outcome}: Killed; log: runs/3/2/log.txt" == failure


@pytest.mark.parametrize("bad", [{}, {TPOT.key: math.nan}, {TPOT.key: 0.0}, {TPOT.key: math.inf}, {TPOT.key: -1.0}])
def test_a_primary_metric_that_is_missing_or_no_positive_number_voids(bad):
    plan = plan_of()
    made = samples_of(plan, values(0.9))
    made[5] = dataclasses.replace(made[5], metrics=bad)
    decision = decide(plan, made)
    assert decision.verdict is Verdict.VOID
    assert "primary metric mean_tpot_ms is" in decision.failures[0]


def with_guard(one, guard, state=GuardState.FIRED):
    return dataclasses.replace(one, guards=(GuardReading(guard, state, "load 1.9, limit 0.5"),))


def again(plan, made, generation, value):
    """The same generation, made a second time."""
    turns = plan.generation(generation).turns
    return [
        *made,
        *(sample(plan, generation, one.position, value(generation, one.position, one.slot), attempt=1) for one in turns),
    ]


def test_a_guard_that_fires_voids_unless_the_generation_was_made_again():
    plan = plan_of()
    made = samples_of(plan, values(0.9))
    made[10] = with_guard(made[10], Guard.LOAD)
    void = decide(plan, made)
    assert void.verdict is Verdict.VOID
    assert "guard load: load 1.9, limit 0.5" in void.failures[0]
    mended = decide(plan, again(plan, made, made[10].generation, values(0.9)))
    assert mended.verdict is Verdict.FASTER
    assert len(mended.replaced) == 1
    assert "guard load" in mended.replaced[0]


def test_more_replacements_than_planned_void():
    plan = plan_of(replacements=1)
    made = samples_of(plan, values(0.9))
    for index in (0, 10):
        made[index] = with_guard(made[index], Guard.LOAD)
    for generation in (1, 2):
        made = again(plan, made, generation, values(0.9))
    decision = decide(plan, made)
    assert decision.verdict is Verdict.VOID
    assert "2 generations were disturbed; the plan allows 1 to be made again" in decision.failures[-1]


@pytest.mark.parametrize("guard", [Guard.MODULES, Guard.TOKENS, Guard.ERRORS])
def test_a_guard_that_tells_of_an_arm_cannot_be_made_good(guard):
    plan = plan_of()
    made = samples_of(plan, values(0.9))
    made[0] = with_guard(made[0], guard)
    assert decide(plan, again(plan, made, 1, values(0.9))).verdict is Verdict.VOID


def test_a_guard_that_cannot_be_read_is_a_note():
    plan = plan_of()
    made = [with_guard(one, Guard.COMPILATION, GuardState.ABSENT) for one in samples_of(plan, values(0.9))]
    decision = decide(plan, made)
    assert decision.verdict is Verdict.FASTER
    assert any("guard compilation cannot be read here" in one for one in decision.notes)


def test_an_unfinished_experiment_is_void():
    plan = plan_of()
    decision = decide(plan, samples_of(plan, values(0.9))[:-1])
    assert decision.verdict is Verdict.VOID
    assert decision.failures == ("unfinished: 5 of 6 generations are complete; resume the experiment",)


def test_choosing_between_two_complete_generations_is_refused():
    plan = plan_of()
    with pytest.raises(EvidenceError, match="generation 2 is complete twice"):
        decide(plan, again(plan, samples_of(plan, values(0.9)), 2, values(0.8)))


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"slot": Slot.CONTROL}, {"position": 99}, {"generation": 99}],
    ids=["seed", "slot", "position", "generation"],
)
def test_samples_of_another_plan_are_refused(change):
    plan = plan_of()
    made = samples_of(plan, values(0.9))
    made[0] = dataclasses.replace(made[0], **change)
    with pytest.raises(EvidenceError):
        decide(plan, made)


def test_a_secondary_metric_that_is_missing_once_is_not_compared_and_said_so():
    plan = plan_of(secondary=(TTFT, THROUGHPUT))
    value = values(0.9)
    made = [
        dataclasses.replace(one, metrics={TPOT.key: one.metrics[TPOT.key], TTFT.key: 100.0, THROUGHPUT.key: 5 + number % 3})
        for number, one in enumerate(samples_of(plan, value))
    ]
    made[7] = dataclasses.replace(made[7], metrics={TPOT.key: made[7].metrics[TPOT.key], THROUGHPUT.key: 5.0})
    decision = decide(plan, made)
    assert decision.verdict is Verdict.FASTER
    assert [one.metric for one in decision.secondary] == [THROUGHPUT]
    assert any(note.startswith("mean_ttft_ms: not compared") for note in decision.notes)


def test_secondary_p_values_are_corrected_for_their_number_and_the_primary_is_not():
    other = [dataclasses.replace(TTFT, key=f"metric-{number}") for number in range(4)]
    plan = plan_of(secondary=tuple(other))
    made = [
        dataclasses.replace(one, metrics=dict.fromkeys((TPOT.key, *(metric.key for metric in other)), one.metrics[TPOT.key]))
        for one in samples_of(plan, values(0.9))
    ]
    decision = decide(plan, made)
    assert decision.primary.adjusted_p is None
    assert [one.adjusted_p for one in decision.secondary] == [4 * 2 / 64] * 4
    assert not any(one.is_significant(plan.alpha) for one in decision.secondary)
    assert any("6 generations cannot make one of 4 secondary metrics significant" in one for one in decision.notes)
    assert any(one.endswith("(smallest p after Holm's correction 0.125); 8 can") for one in decision.notes)


def test_percentages_in_reasons_are_in_the_direction_of_the_effect():
    plan = plan_of()
    reasons = decide(plan, samples_of(plan, values(0.9, noise=(0.0,))), {TPOT.key: aa(math.log(1.25))}).reasons
    assert "the effect (10.00 %) is not larger than the largest of 2 A/A ratios (20.00 %)" in reasons


def test_a_screen_that_agrees_and_is_large_is_worth_confirming_but_never_faster():
    plan = plan_of(Tier.SCREEN)
    decision = decide(plan, samples_of(plan, values(0.97)))
    assert (decision.sign, decision.verdict, decision.exit_code) == (ScreenSign.WORTH_CONFIRMING, None, ExitCode.OK)
    assert decision.primary.p is None
    assert decision.primary.n == 4


def test_a_screen_below_its_limit_shows_no_sign():
    plan = plan_of(Tier.SCREEN)
    decision = decide(plan, samples_of(plan, values(0.9865, noise=(0.0,))))
    assert (decision.sign, decision.exit_code) == (ScreenSign.NO_SIGN, ExitCode.OK)


def test_a_screen_whose_pairs_do_not_agree_shows_no_sign():
    plan = plan_of(Tier.SCREEN)
    made = samples_of(plan, values(0.9))
    last = next(one for one in reversed(made) if one.slot is Slot.PATCHED)
    made[made.index(last)] = dataclasses.replace(last, metrics={TPOT.key: 33.1})
    assert decide(plan, made).sign is ScreenSign.NO_SIGN


def test_a_screen_within_twice_the_stored_spread_shows_no_sign():
    plan = plan_of(Tier.SCREEN)
    made = samples_of(plan, values(0.97))
    assert decide(plan, made, {TPOT.key: aa(0.014, tier=Tier.SCREEN)}).sign is ScreenSign.WORTH_CONFIRMING
    assert decide(plan, made, {TPOT.key: aa(0.016, tier=Tier.SCREEN)}).sign is ScreenSign.NO_SIGN


def test_a_screen_takes_the_devices_calibration_only_where_it_has_no_spread_of_its_own():
    plan = plan_of(Tier.SCREEN)
    made = samples_of(plan, values(0.97))
    quiet, loud = DeviceNoise(0.014, "this device is quiet"), DeviceNoise(0.016, "this device is loud")
    assert decide(plan, made, {}, quiet).sign is ScreenSign.WORTH_CONFIRMING
    found = decide(plan, made, {}, loud)
    assert found.sign is ScreenSign.NO_SIGN
    assert any("this device's calibration" in one for one in found.reasons)
    assert "this device is loud" in found.notes
    assert decide(plan, made, {TPOT.key: aa(0.014, tier=Tier.SCREEN)}, loud).sign is ScreenSign.WORTH_CONFIRMING


def test_no_verdict_depends_on_the_devices_calibration():
    plan = plan_of()
    assert decide(plan, samples_of(plan, values(0.98)), {}, DeviceNoise(0.5, "loud")).verdict is Verdict.FASTER


def test_a_screen_without_a_stored_control_says_so():
    plan = plan_of(Tier.SCREEN)
    assert any("no A/A is stored" in one for one in decide(plan, samples_of(plan, values(0.97))).reasons)


def test_a_failed_screen_is_void():
    plan = plan_of(Tier.SCREEN)
    made = samples_of(plan, values(0.97))
    made[3] = dataclasses.replace(made[3], outcome=Outcome.CRASHED, metrics={})
    decision = decide(plan, made)
    assert (decision.sign, decision.exit_code) == (ScreenSign.VOID, ExitCode.VOID)


def test_two_groups_and_outliers_are_noted_and_kept():
    plan = plan_of(control=False)
    made = samples_of(plan, lambda generation, position, slot: (40.0 if position in {1, 3} else 33.0) * (1 + generation / 1000))
    notes = decide(plan, made).notes
    assert any("fall into two groups" in one for one in notes)
    assert any("spreads over" in one for one in notes)
    plain = samples_of(plan, values(0.9))
    plain[0] = dataclasses.replace(plain[0], metrics={TPOT.key: 80.0})
    decision = decide(plan, plain)
    assert any("1 of 12 values lie more than 3 interquartile ranges outside; they are kept" in one for one in decision.notes)
    assert decision.primary.values[0] < decide(plan, samples_of(plan, values(0.9))).primary.values[0]
