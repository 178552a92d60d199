"""The CSV of FlashInfer's benchmark script: the header is that of v0.6.12, the rows are made from reading its writer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.vocabulary import Device, Direction, Engine, Outcome
from harness.workloads.flashinfer_results import read_result
from harness.workloads.model import Metric, Script
from tests.workloads.test_vllm_results import SERVE

FILE = Path(__file__).with_name("data") / "flashinfer-0.6.12-decode.csv"
WORKLOAD = replace(
    SERVE,
    engine=Engine.FLASHINFER,
    script=Script.ROUTINE,
    devices=(Device.CUDA,),
    model="",
    primary=Metric("b32-4096/fa2_tc.median_time", "ms", Direction.LOWER),
    secondary=(Metric("b32-4096/fa2.median_time", "ms", Direction.LOWER),),
)


@pytest.fixture
def changed(tmp_path):
    def make(change) -> Path:
        path = tmp_path / "result.csv"
        path.write_text(change(FILE.read_text()))
        return path

    return make


def test_rows_are_named_by_case_and_backend():
    result = read_result(FILE, WORKLOAD)
    assert result.outcome is Outcome.OK
    assert result.metrics == {"b32-4096/fa2_tc.median_time": 0.13402, "b32-4096/fa2.median_time": 0.21843}
    assert result.tokens is None


def test_a_case_without_tag_is_named_by_its_backend(changed):
    workload = replace(WORKLOAD, primary=Metric("fa2_tc.median_time", "ms", Direction.LOWER), secondary=())
    assert read_result(changed(lambda text: text.replace("b32-4096", "None")), workload).metrics == {
        "fa2_tc.median_time": 0.13402
    }


def test_a_backend_that_the_script_left_out_is_missing(changed):
    result = read_result(changed(lambda text: "\n".join(text.splitlines()[:2])), WORKLOAD)
    assert result.outcome is Outcome.BAD_RESULT
    assert "'b32-4096/fa2_tc.median_time' is not in the result" in result.problem


@pytest.mark.parametrize(
    ("change", "outcome", "problem"),
    [
        (lambda text: text.splitlines()[0] + "\n", Outcome.NO_RESULT, "has a header and no row"),
        (lambda text: text.replace("median_time", "median"), Outcome.BAD_RESULT, "lacks the columns 'median_time'"),
        (lambda text: text.replace("b32-4096", "b32,4096"), Outcome.BAD_RESULT, "was there a comma"),
        (lambda text: text + text.splitlines()[1] + "\n", Outcome.BAD_RESULT, "two rows for b32-4096/fa2"),
        (lambda text: text.replace("0.13402", "nan"), Outcome.BAD_RESULT, "is nan"),
        (lambda text: text.replace("0.13402", ""), Outcome.BAD_RESULT, "is null"),
        (lambda _text: "", Outcome.NO_RESULT, "left result.csv empty"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(changed, change, outcome, problem):
    result = read_result(changed(change), WORKLOAD)
    assert result.outcome is outcome
    assert problem in result.problem
