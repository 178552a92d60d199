from __future__ import annotations

import json
import resource

import pytest
from report_fakes import CASES, evidence_of

from harness.errors import EvidenceError
from harness.experiments.verdict import decide
from harness.reports.evidence import read_evidence, write_evidence
from harness.vocabulary import Slot


@pytest.mark.parametrize("case", sorted(CASES))
def test_evidence_comes_back_as_it_was(tmp_path, case):
    evidence = evidence_of(case)
    write_evidence(tmp_path / "evidence.json", evidence)
    assert read_evidence(tmp_path / "evidence.json") == evidence


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_decision_can_be_made_again_from_the_file_alone(tmp_path, case):
    write_evidence(tmp_path / "evidence.json", evidence_of(case))
    read = read_evidence(tmp_path / "evidence.json")
    assert decide(read.plan, read.samples, read.history) == read.decision


def test_no_path_of_the_machine_goes_into_evidence(tmp_path):
    write_evidence(tmp_path / "evidence.json", evidence_of("confirm-faster"))
    text = (tmp_path / "evidence.json").read_text()
    assert "/somewhere" not in text
    assert json.loads(text)["arms"]["base"]["variables"] == {
        "PYTHONPATH": "(path)",
        "PYTHONPYCACHEPREFIX": "(path)",
        "FLASHINFER_WORKSPACE_BASE": "(path)",
        "PYTHONSAFEPATH": "1",
    }


def test_evidence_names_packages_trees_and_links_of_both_arms():
    evidence = evidence_of("confirm-faster")
    base, patched = evidence.arms[Slot.BASE], evidence.arms[Slot.PATCHED]
    assert base.packages == patched.packages == {"numpy": "2.2.6", "torch": "2.11.0"}
    assert (base.trees[0].tip, patched.trees[0].label) == ("ee0da84ab" + "0" * 31, "vllm/penalties-bin-counts")
    assert (base.links, base.links_digest) == (1, patched.links_digest)


@pytest.fixture
def stored(tmp_path):
    file = tmp_path / "evidence.json"
    write_evidence(file, evidence_of("confirm-faster"))
    return file


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe", "cannot read evidence"),
        (b"[]", "names no schema version"),
        (b'{"schema": 2}', "schema version 2, this harness reads 1"),
        (b'{"schema": 1}', "missing field written, plan_digest"),
    ],
)
def test_garbage_and_other_versions_are_refused(stored, content, message):
    stored.write_bytes(content)
    with pytest.raises(EvidenceError, match=message):
        read_evidence(stored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["plan"].update(alpha=0.1), "the plan was changed after the experiment"),
        (lambda data: data["samples"][3].update(seconds="long"), r"samples\[3\]\.seconds: expected float"),
        (lambda data: data["decision"].update(verdict="great"), r"decision\.verdict: 'great' is none of faster"),
        (lambda data: data["machine"].pop("cpu"), r"machine: missing field cpu"),
        (lambda data: data.update(comment="x"), "unknown field comment"),
    ],
)
def test_a_changed_or_malformed_field_is_named(stored, change, message):
    data = json.loads(stored.read_text())
    change(data)
    stored.write_text(json.dumps(data))
    with pytest.raises(EvidenceError, match=message):
        read_evidence(stored)


def test_a_missing_file_is_a_clear_error(tmp_path):
    with pytest.raises(EvidenceError, match="cannot read evidence"):
        read_evidence(tmp_path / "none.json")


def test_a_full_disk_keeps_the_evidence_that_was_there(stored):
    old = stored.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(EvidenceError, match="cannot write"):
            write_evidence(stored, evidence_of("confirm-slower"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert stored.read_bytes() == old
