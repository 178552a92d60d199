"""Kernel workloads are read without torch or an engine, and what a file lacks is named."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from harness.errors import UnknownWorkloadError, WorkloadError
from harness.paths import Paths
from harness.vocabulary import Device, Engine
from harness.workloads.kernel_reader import kernel_workload_file, list_kernel_workloads, read_kernel_workload, read_workfile

ROOT = Path(__file__).resolve().parents[2]
PATHS = Paths(root=ROOT, state=ROOT / "nowhere")
GOOD = """
WHY = "why"
LINKS = ()
POINTS = ({"name": "a"},)
def make(point, device, seed): ...
def call(case): ...
def reference(case): ...
def bytes_and_flops(point): return 1, 1
"""


def paths_with(tmp_path, text, name="one"):
    folder = tmp_path / "workloads" / "vllm"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    return Paths(root=tmp_path, state=tmp_path / "state")


def test_the_repositorys_workloads_can_be_read_and_have_points_and_floors():
    names = list_kernel_workloads(PATHS)
    assert {"vllm/triton_decode", "sglang/triton_decode", "flashinfer/decode", "flashinfer/softmax"} <= set(names)
    assert "vllm/penalties_step" not in names
    for name in names:
        workload = read_kernel_workload(PATHS, name)
        work = read_workfile(kernel_workload_file(PATHS, name))
        assert workload.primary.key in {"cold_us", "warm_us", "host_us"}
        for point in work.points:
            moved, flops = work.bytes_and_flops(point)
            assert moved > 0
            assert flops > 0
        known = set(workload.points) | {""}
        assert all(one.point in known or one.unit == "tokens/s" for one in workload.published)


def test_bytes_are_those_of_the_baseline_table():
    """32/8 heads of 128 in bf16 at batch 16, context 8192: 537 MB of keys and values."""
    for name in ("vllm/triton_decode", "flashinfer/decode", "sglang/triton_decode"):
        work = read_workfile(kernel_workload_file(PATHS, name))
        moved, flops = work.bytes_and_flops(work.by_name["bf16-32/8-b16-8192"])
        assert math.isclose(moved, 537e6, rel_tol=1e-3)
        assert flops == 4 * 16 * 8192 * 32 * 128


def test_the_known_answers_primary_is_the_host_time():
    workload = read_kernel_workload(PATHS, "flashinfer/plan_host")
    assert workload.primary.key == "host_us"
    assert {one.key for one in workload.secondary} == {"cold_us", "warm_us"}
    assert (workload.engine, workload.devices) == (Engine.FLASHINFER, (Device.CUDA,))


def test_an_unknown_name_offers_the_nearest(tmp_path):
    with pytest.raises(UnknownWorkloadError, match="vllm/one"):
        read_kernel_workload(paths_with(tmp_path, GOOD), "vllm/on")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("def call(case): ...", ""), "does not define call"),
        (GOOD.replace('({"name": "a"},)', "()"), "POINTS is empty"),
        (GOOD.replace('({"name": "a"},)', '({"name": "a"}, {"name": "a"})'), "two points are called 'a'"),
        (GOOD.replace('"a"', '"a b"'), "a point's name is 'a b'"),
        (GOOD + "import no_such_engine\n", "imports no_such_engine at its top level"),
        (GOOD + "1 / 0\n", "ZeroDivisionError"),
        (GOOD + "PRIMARY = 'hot'\n", "not one of cold, warm, host"),
        (GOOD + "PRIMARY = 'host'\n", "needs a function host"),
        (GOOD + "PUBLISHED = ({'source': 'x'},)\n", "a PUBLISHED number has the fields"),
        (GOOD + "DEVICES = ('tpu',)\n", "'tpu' is not a valid Device"),
        (GOOD + "VARIANTS = {'x': {'role': 'friend'}}\n", "role 'friend'"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, text, message):
    with pytest.raises(WorkloadError, match=message):
        read_kernel_workload(paths_with(tmp_path, text), "vllm/one")


def test_the_digest_follows_the_file(tmp_path):
    one = read_kernel_workload(paths_with(tmp_path, GOOD), "vllm/one")
    two = read_kernel_workload(paths_with(tmp_path, GOOD + "# changed\n"), "vllm/one")
    assert one.digest != two.digest
