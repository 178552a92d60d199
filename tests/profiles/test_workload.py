"""Which workloads can be profiled by name; the others are refused before anything is made."""

from pathlib import Path

import pytest

from harness.context import Context
from harness.errors import UnknownWorkloadError, UsageError
from harness.paths import Paths
from harness.profiles import workload as module
from harness.profiles.workload import workload_command
from harness.progress import Progress
from harness.vocabulary import Device


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("an arm was made for a workload that cannot be profiled")

    monkeypatch.setattr(module, "arm_for", never)
    return Context(paths=Paths.of(state=tmp_path), progress=Progress(quiet=True))


def _command(context: Context, name: str) -> None:
    workload_command(context, name, patched="base", pin="bench", device=Device.CUDA, folder=Path("/nowhere"))


def test_a_server_is_refused(context: Context) -> None:
    with pytest.raises(UsageError, match=r"runs the serve script of vllm.*vllm: latency and throughput; sglang: latency"):
        _command(context, "vllm/penalties-serve")


def test_an_unknown_workload_is_a_usage_error_with_the_nearest(context: Context) -> None:
    with pytest.raises(UnknownWorkloadError, match="decode-latency"):
        _command(context, "vllm/decode-latencie")


def test_a_script_that_can_be_profiled_gets_its_arm(context: Context) -> None:
    with pytest.raises(AssertionError, match="an arm was made"):
        _command(context, "vllm/decode-latency")
