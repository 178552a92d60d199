from __future__ import annotations

import json
import math

import pytest
from experiment_fakes import TPOT, TTFT, paths_in, plan_of, samples_of

from harness.errors import EvidenceError
from harness.experiments import calibration
from harness.experiments.calibration import AARecord, History
from harness.vocabulary import Mode, Slot, Tier


@pytest.fixture
def paths(tmp_path):
    return paths_in(tmp_path)


def record(name, ratio, tier=Tier.CONFIRM, generations=None):
    return AARecord(name, "2026-12-01T12:00:00+00:00", tier, ratio, generations or (ratio,))


def shifted(slot, ratio):
    return lambda generation, _position, one: 33.0 * (ratio * (1 + generation / 1000) if one is slot else 1.0)


def test_nothing_stored_is_no_spread_and_no_largest(paths):
    history = calibration.load(paths, plan_of(), TPOT.key)
    assert (history.records, history.spread, history.largest, history.experiments) == ((), None, None, 0)


def test_records_come_back_oldest_first_and_once_each(paths):
    plan = plan_of()
    for one in (record("a", 0.01), record("b", -0.02), record("a", 0.01)):
        calibration.append(paths, plan, TPOT.key, one)
    assert [one.experiment for one in calibration.load(paths, plan, TPOT.key).records] == ["a", "b"]


def test_spread_is_over_generations_and_largest_over_confirm_experiments():
    history = History((record("a", 0.01, generations=(0.03, -0.04)), record("b", -0.09, Tier.SCREEN, (0.0, 0.0))))
    assert history.spread == pytest.approx(math.sqrt((0.03**2 + 0.04**2) / 4))
    assert (history.largest, history.experiments) == (0.01, 1)
    assert history.without("a").largest is None


@pytest.mark.parametrize(
    "change", [{"device": "another"}, {"workload": "other"}, {"workload_digest": "e" * 64}, {"mode": Mode.PROCESS}]
)
def test_another_device_workload_or_mode_has_records_of_its_own(paths, change):
    calibration.append(paths, plan_of(), TPOT.key, record("a", 0.01))
    assert calibration.load(paths, plan_of(**change), TPOT.key).records == ()
    assert calibration.load(paths, plan_of(), TTFT.key).records == ()


def test_a_confirm_experiment_yields_its_control(paths):
    plan = plan_of()
    found = calibration.record_experiment(paths, plan, samples_of(plan, shifted(Slot.CONTROL, 1.02)))
    expected = [math.log(1.02 * (1 + number / 1000)) for number in range(1, 7)]
    assert found[TPOT.key].generations == pytest.approx(expected)
    assert found[TPOT.key].ratio == pytest.approx(sum(expected) / 6)
    assert calibration.load(paths, plan, TPOT.key).records == (found[TPOT.key],)


def test_an_aa_experiment_yields_itself(paths):
    plan = plan_of(Tier.SCREEN, aa=True)
    found = calibration.records_of(plan, samples_of(plan, shifted(Slot.PATCHED, 0.99)))
    assert found[TPOT.key].ratio == pytest.approx(math.log(0.99 * 1.001))
    assert found[TPOT.key].tier is Tier.SCREEN


def test_what_has_no_control_or_is_not_finished_yields_nothing(paths):
    screen, confirm = plan_of(Tier.SCREEN), plan_of()
    assert calibration.records_of(screen, samples_of(screen, shifted(Slot.PATCHED, 0.9))) == {}
    assert calibration.records_of(confirm, samples_of(confirm, shifted(Slot.PATCHED, 0.9))[:-1]) == {}


def test_all_metrics_of_a_plan_are_loaded(paths):
    plan = plan_of(secondary=(TTFT,))
    calibration.append(paths, plan, TTFT.key, record("a", 0.1))
    found = calibration.load_all(paths, plan)
    assert [len(found[key].records) for key in (TPOT.key, TTFT.key)] == [0, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "schema version none"),
        ('{"schema": 9}', "schema version 9, this harness reads 1"),
        ('{"schema": 1}', "is of another workload"),
    ],
)
def test_a_damaged_file_is_an_error_not_an_empty_history(paths, content, message):
    plan = plan_of()
    calibration.append(paths, plan, TPOT.key, record("a", 0.01))
    (file,) = paths.calibration.glob("*.json")
    file.write_text(content)
    with pytest.raises(EvidenceError, match=message):
        calibration.load(paths, plan, TPOT.key)


def test_a_malformed_record_is_named(paths):
    plan = plan_of()
    calibration.append(paths, plan, TPOT.key, record("a", 0.01))
    (file,) = paths.calibration.glob("*.json")
    data = json.loads(file.read_text())
    data["records"][0]["ratio"] = "small"
    file.write_text(json.dumps(data))
    with pytest.raises(EvidenceError, match=r"records\[0\]\.ratio: expected float, found 'small'"):
        calibration.load(paths, plan, TPOT.key)
