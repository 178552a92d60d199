from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest
from experiment_fakes import BASE, PATCHED, paths_in, plan_of, samples_of

from harness.errors import EvidenceError, PlanError, UnknownExperimentError
from harness.experiments.store import ExperimentStore, check_arms, experiments, read_experiment
from harness.vocabulary import Slot


@pytest.fixture
def paths(tmp_path):
    return paths_in(tmp_path)


@pytest.fixture
def plan():
    return plan_of()


@pytest.fixture
def some(plan):
    return samples_of(plan, lambda *_: 33.0)[:5]


def filled(paths, plan, samples):
    with ExperimentStore.create(paths, plan) as store:
        for one in samples:
            store.append(one)
    return store.folder


def test_the_plan_is_on_disk_with_its_digest_before_any_run(paths, plan):
    with ExperimentStore.create(paths, plan) as store:
        assert json.loads((store.folder / "plan.json").read_text())["digest"] == plan.digest


def test_samples_come_back_as_they_were(paths, plan, some):
    filled(paths, plan, some)
    with ExperimentStore.resume(paths, plan.id) as store:
        assert (store.plan, store.samples, store.aside) == (plan, some, [])


def test_nan_comes_back_as_nan(paths, plan, some):
    some[0].metrics["mean_ttft_ms"] = float("nan")
    folder = filled(paths, plan, some)
    assert '"mean_ttft_ms":"nan"' in (folder / "samples.jsonl").read_text()
    _, samples = read_experiment(paths, plan.id)
    assert str(samples[0].metrics["mean_ttft_ms"]) == "nan"


def test_a_torn_last_line_is_set_aside_and_reported(paths, plan, some):
    folder = filled(paths, plan, some)
    file = folder / "samples.jsonl"
    file.write_bytes(file.read_bytes() + b'{"generation":1,"att')
    assert read_experiment(paths, plan.id)[1] == tuple(some)
    with ExperimentStore.resume(paths, plan.id) as store:
        assert store.samples == some
        assert "torn (20 bytes); it is in samples.torn-1" in store.aside[0]
        store.append(some[0])
    assert (folder / "samples.torn-1").read_bytes() == b'{"generation":1,"att'
    assert read_experiment(paths, plan.id)[1] == (*some, some[0])


def test_damage_in_the_middle_is_an_error_that_names_the_line(paths, plan, some):
    folder = filled(paths, plan, some)
    file = folder / "samples.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace('"outcome":"ok"', '"outcome":"fine"')
    file.write_text("".join(lines))
    with pytest.raises(EvidenceError, match=r"samples\.jsonl line 3\.outcome: 'fine' is none of ok, crashed"):
        ExperimentStore.resume(paths, plan.id)


def test_a_failed_resume_does_not_keep_the_lock(paths, plan, some):
    folder = filled(paths, plan, some)
    good = (folder / "samples.jsonl").read_text()
    (folder / "samples.jsonl").write_text("garbage\n")
    with pytest.raises(EvidenceError, match="is not JSON"):
        ExperimentStore.resume(paths, plan.id)
    (folder / "samples.jsonl").write_text(good)
    ExperimentStore.resume(paths, plan.id).close()


def test_an_experiment_exists_once(paths, plan):
    ExperimentStore.create(paths, plan).close()
    with pytest.raises(EvidenceError, match="exists already"):
        ExperimentStore.create(paths, plan)


def test_a_second_process_on_one_experiment_is_refused(paths, plan, some):
    filled(paths, plan, some)
    script = (
        "import sys; from pathlib import Path; from harness.paths import Paths; "
        "from harness.experiments.store import ExperimentStore\n"
        "ExperimentStore.resume(Paths(Path(sys.argv[1]), Path(sys.argv[2])), sys.argv[3])"
    )
    command = [sys.executable, "-c", script, str(paths.root), str(paths.state), plan.id]
    with ExperimentStore.resume(paths, plan.id):
        second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"experiment {plan.id} is in use by another harness process" in second.stderr
    assert subprocess.run(command, check=False).returncode == 0


def test_an_unknown_experiment_offers_the_nearest_name(paths, plan):
    ExperimentStore.create(paths, plan).close()
    assert experiments(paths) == (plan.id,)
    with pytest.raises(UnknownExperimentError, match=f"Did you mean '{plan.id}'"):
        ExperimentStore.resume(paths, plan.id[:-2])


def test_a_changed_plan_is_refused(paths, plan):
    ExperimentStore.create(paths, plan).close()
    file = paths.experiments / plan.id / "plan.json"
    file.write_text(file.read_text().replace('"alpha": 0.05', '"alpha": 0.1'))
    with pytest.raises(EvidenceError, match="was changed after it was written"):
        ExperimentStore.resume(paths, plan.id)


@pytest.mark.parametrize("garbage", [b"", b"\xff\xfe\x00", b"[1]", b"{"])
def test_a_plan_that_is_garbage_is_an_error(paths, plan, garbage):
    ExperimentStore.create(paths, plan).close()
    (paths.experiments / plan.id / "plan.json").write_bytes(garbage)
    with pytest.raises(EvidenceError, match=r"plan\.json"):
        ExperimentStore.resume(paths, plan.id)


def test_an_arm_that_changed_since_the_plan_cannot_resume(plan):
    check_arms(plan, {Slot.BASE: BASE, Slot.PATCHED: PATCHED, Slot.CONTROL: BASE})
    with pytest.raises(
        PlanError, match=r"the patched arm is not what was planned: vllm/penalties-bin-counts.*now vllm-0\.24\.0"
    ):
        check_arms(plan, {Slot.BASE: BASE, Slot.PATCHED: BASE, Slot.CONTROL: BASE})
    with pytest.raises(PlanError, match="now missing"):
        check_arms(plan, {Slot.BASE: BASE, Slot.PATCHED: PATCHED})


def test_a_full_disk_keeps_the_earlier_samples(paths, plan, some, monkeypatch):
    real = os.write
    with ExperimentStore.create(paths, plan) as store:
        for one in some[:3]:
            store.append(one)
        written = []

        def full(descriptor, data):
            # Half a line gets through, as on a real disk that fills up.
            if written:
                raise OSError(28, "No space left on device")
            written.append(real(descriptor, bytes(data)[: len(data) // 2]))
            return written[0]

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(EvidenceError, match=r"No space left on device\. 3 earlier samples are kept; make room and resume"):
            store.append(some[3])
        monkeypatch.undo()
    with ExperimentStore.resume(paths, plan.id) as store:
        assert (store.samples, store.aside) == (some[:3], [])
        store.append(some[3])
    assert read_experiment(paths, plan.id)[1] == tuple(some[:4])


def test_a_real_limit_on_the_file_size_keeps_the_earlier_samples(paths, plan, some):
    folder = filled(paths, plan, some[:4])
    size = (folder / "samples.jsonl").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ExperimentStore.resume(paths, plan.id) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, before[1]))
        try:
            with pytest.raises(EvidenceError, match="4 earlier samples are kept"):
                store.append(some[4])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (folder / "samples.jsonl").stat().st_size == size
    assert read_experiment(paths, plan.id)[1] == tuple(some[:4])


def test_each_attempt_at_a_generation_has_a_folder_of_its_own(paths, plan):
    with ExperimentStore.create(paths, plan) as store:
        assert [store.begin(2), store.begin(2), store.begin(3)] == [0, 1, 0]
        assert store.directory(2, 1, 5) == store.folder / "runs" / "2-again-1" / "5"
        assert store.relative(store.folder / "runs" / "2" / "log.txt") == "runs/2/log.txt"
        assert store.relative(None) is None
