from __future__ import annotations

import copy
import dataclasses
import json

import pytest
from experiment_fakes import BASE, PATCHED, TPOT, TTFT, plan_of

from harness.errors import EvidenceError, PlanError
from harness.experiments.cost import counted_runs, describe, estimated_seconds, warmup_count
from harness.experiments.order import Ordering
from harness.experiments.plan import plan_from_json, plan_to_json
from harness.vocabulary import Mode, Slot, Tier


def test_a_screen_is_one_generation_of_four_pairs_without_a_control():
    plan = plan_of(Tier.SCREEN)
    assert len(plan.generations) == 1
    assert len(plan.generations[0].turns) == 8
    assert not plan.control


def test_confirm_takes_six_generations_live_and_ten_in_process_mode_with_a_control():
    live, process = plan_of(mode=Mode.LIVE), plan_of(mode=Mode.PROCESS)
    assert (len(live.generations), len(live.generations[0].turns)) == (6, 8)
    assert (len(process.generations), len(process.generations[0].turns)) == (10, 4)
    assert live.generations[0].slots == (Slot.BASE, Slot.PATCHED, Slot.CONTROL)


def test_the_control_is_the_base_arm():
    assert plan_of().arms == {Slot.BASE: BASE, Slot.PATCHED: PATCHED, Slot.CONTROL: BASE}


def test_both_runs_of_a_pair_have_one_seed_and_no_two_pairs_share_it():
    plan = plan_of()
    turns = [turn for one in plan.generations for turn in one.turns]
    assert all(one.seed == two.seed and one.pair == two.pair for one, two in zip(turns[::2], turns[1::2], strict=True))
    warm = [seed for one in plan.generations for seed in one.warmup_seeds]
    assert len({turn.seed for turn in turns} | set(warm)) == len(turns) // 2 + len(warm)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"generations": 5}, "live mode needs at least 6 generations, not 5"),
        ({"mode": Mode.PROCESS, "generations": 9}, "process mode needs at least 10 generations, not 9"),
        ({"mode": Mode.PROCESS, "generations": 11}, "even number of generations, not 11"),
        ({"tier": Tier.SCREEN, "generations": 2}, "a screen is one generation, not 2"),
        ({"tier": Tier.SCREEN, "blocks": 1}, "at least 3 pairs; 1 ABBA block gives 2"),
        ({"blocks": 0}, "blocks must be 1 or more"),
        ({"warmup_runs": -1}, "warm-up runs 0 or more"),
        ({"patched": BASE}, "base and patched are the same arm"),
        ({"aa": True, "patched": PATCHED}, "runs one arm twice, but the digests differ"),
        ({"aa": True, "control": True}, "is its own control"),
        ({"secondary": (TPOT,)}, "a metric is named twice: mean_tpot_ms, mean_tpot_ms"),
        ({"alpha": 0.5}, "alpha"),
        ({"alpha": 0.01}, "6 generations give no p below 0.0312, so never 0.01 or less"),
    ],
)
def test_a_plan_that_cannot_give_an_answer_is_refused(options, message):
    with pytest.raises(PlanError, match=message):
        plan_of(**options)


def test_the_digest_changes_with_every_field():
    plan = plan_of(secondary=(TTFT,), start_seconds=1.0, run_seconds=2.0)
    other = {
        "schema": 2,
        "alpha": 0.01,
        "margin": 0.005,
        "seed": 8,
        "replacements": 9,
        "workload_digest": "x",
        "primary": TTFT,
        "generations": plan.generations[:-1],
        "arms": {Slot.BASE: BASE},
        "ordering": Ordering.RANDOM,
    }
    digests = {dataclasses.replace(plan, **{name: value}).digest for name, value in other.items()}
    assert len(digests | {plan.digest}) == len(other) + 1


def test_a_plan_survives_json():
    plan = plan_of(secondary=(TTFT,), ordering=Ordering.RANDOM, mode=Mode.PROCESS)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan))), "plan.json") == plan


def stored():
    return copy.deepcopy(json.loads(json.dumps(plan_to_json(plan_of()))))


def test_a_plan_that_was_edited_is_refused():
    data = stored()
    data["plan"]["alpha"] = 0.1
    with pytest.raises(EvidenceError, match=r"plan\.json was changed after it was written"):
        plan_from_json(data, "plan.json")


def test_another_schema_version_is_refused():
    data = stored()
    data["plan"]["schema"] = 7
    with pytest.raises(EvidenceError, match=r"schema version 7, this harness reads 1"):
        plan_from_json(data, "plan.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan.pop("alpha"), "missing field alpha"),
        (lambda plan: plan.update(extra=1), "unknown field extra"),
        (lambda plan: plan.update(alpha="much"), r"plan\.alpha: expected float, found 'much'"),
        (lambda plan: plan.update(aa=1), r"plan\.aa: expected bool, found 1"),
        (lambda plan: plan.update(seed=True), r"plan\.seed: expected int, found True"),
        (lambda plan: plan.update(tier="sift"), r"plan\.tier: 'sift' is none of screen, confirm"),
        (lambda plan: plan.update(generations={}), r"plan\.generations: expected a list, found dict"),
        (lambda plan: plan["generations"][2]["turns"][0].pop("seed"), r"generations\[2\]\.turns\[0\]: missing field seed"),
        (lambda plan: plan.update(arms=[]), r"plan\.arms: expected an object, found list"),
        (lambda plan: plan.update(primary="tpot"), r"plan\.primary: expected an object, found str"),
    ],
)
def test_a_malformed_field_is_named(change, message):
    data = stored()
    change(data["plan"])
    with pytest.raises(EvidenceError, match=message):
        plan_from_json(data, "plan.json")


@pytest.mark.parametrize("garbage", [[], {}, {"plan": 3, "digest": ""}, "text", None])
def test_what_is_no_plan_is_refused(garbage):
    with pytest.raises(EvidenceError, match="not a stored plan"):
        plan_from_json(garbage, "plan.json")


def test_the_cost_counts_starts_warmups_and_runs():
    plan = plan_of(warmup_runs=1, start_seconds=73.0, run_seconds=17.0)
    assert (counted_runs(plan), warmup_count(plan)) == (48, 18)
    assert estimated_seconds(plan) == 6 * 73.0 + (48 + 18) * 17.0


def test_process_mode_warms_up_once_and_pays_no_extra_start():
    plan = plan_of(mode=Mode.PROCESS, warmup_runs=1, run_seconds=20.0)
    assert warmup_count(plan) == 3
    assert estimated_seconds(plan) == (40 + 3) * 20.0


def test_a_cost_that_is_not_known_is_none():
    assert estimated_seconds(plan_of(run_seconds=17.0)) is None


def test_a_dry_run_shows_order_cost_and_rules():
    text = describe(plan_of(warmup_runs=1, start_seconds=73.0, run_seconds=17.0, secondary=(TTFT,)))
    assert "       1  B P P B B C C B\n" in text
    assert "       2  P B B P C B B C\n" in text
    assert "48 counted and 18 warm-up in 6 generations" in text
    assert "about 26 min 0 s" in text
    assert "vllm/penalties-bin-counts at 123456789012" in text
    assert "sign-flip p <= 0.05" in text
    assert "mean_tpot_ms (ms, lower is better)" in text
