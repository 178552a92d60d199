"""What is added to the engines' own scripts, and the launcher that gives SGLang one range with marked steps."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.profiles.engines import SGLANG_RANGES, engine_of, profiled
from harness.vocabulary import Engine

VLLM = ("python", "-m", "vllm.entrypoints.cli.main", "bench", "latency", "--model", "x")
SGLANG = ("python", "-u", "-m", "sglang.bench_one_batch", "--model-path", "x")


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        (VLLM, Engine.VLLM),
        (("/venv/bin/vllm", "bench", "latency"), Engine.VLLM),
        (SGLANG, Engine.SGLANG),
        (("python", "-m", "sglang.benchmark.one_batch"), Engine.SGLANG),
        (("python", "train.py", "--vllm"), None),
    ],
)
def test_the_engine_of_a_command(command: tuple[str, ...], engine: Engine | None) -> None:
    assert engine_of(command) is engine


def test_vllm_profiles_one_batch_after_its_warm_up() -> None:
    made = profiled(Engine.VLLM, VLLM)
    assert made.command == (*VLLM, "--profile", "--profiler-config", '{"profiler":"cuda"}')
    assert made.variables == {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    assert made.ranged


def test_what_the_user_gave_is_kept() -> None:
    given = (*VLLM, "--profile", "--profiler-config.profiler", "cuda")
    assert profiled(Engine.VLLM, given).command == given


def test_sglang_runs_through_the_launcher() -> None:
    assert profiled(Engine.SGLANG, SGLANG).command == (
        *("python", "-u", str(SGLANG_RANGES), "-m", "sglang.bench_one_batch", "--model-path", "x"),
        *("--profile", "--profile-activities", "CUDA_PROFILER", "--profile-stage", "prefill"),
    )


def test_whole_and_other_commands_are_left_alone() -> None:
    assert profiled(Engine.VLLM, VLLM, whole=True).command == VLLM
    assert not profiled(Engine.VLLM, VLLM, whole=True).ranged
    assert profiled(None, ("python", "x.py")).command == ("python", "x.py")


@pytest.mark.parametrize("command", [("vllm", "serve", "x"), ("vllm", "bench", "serve")])
def test_a_server_is_refused(command: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="POST /start_profile"):
        profiled(Engine.VLLM, command)


@pytest.mark.parametrize("module", ["sglang.launch_server", "sglang.bench_serving", "sglang.bench_offline_throughput"])
def test_sglangs_other_scripts_are_refused(module: str) -> None:
    with pytest.raises(UsageError, match=r"bench_one_batch can be profiled.*POST /start_profile"):
        profiled(Engine.SGLANG, ("python", "-m", module))


def test_a_command_whose_script_cannot_be_found() -> None:
    with pytest.raises(UsageError, match="cannot tell Python's own options"):
        profiled(Engine.SGLANG, ("python", "-X", "dev", "-m", "sglang.bench_one_batch"))


# Stand-ins for torch and SGLang that write what they are asked to do.
TORCH = """
class _Runtime:
    class cudaError:
        success = 0
    def cudaProfilerStart(self):
        print("START"); return 0
    def cudaProfilerStop(self):
        print("STOP"); return 0
    def other(self):
        return "other"
class nvtx:
    @staticmethod
    def range_push(name): print("PUSH", name)
    @staticmethod
    def range_pop(): print("POP")
_runtime = _Runtime()
def cudart(): return _runtime
def synchronize(): print("SYNC")
"""
NVTX = """
import contextlib
def profile_range(name, *, color=None, nvtx_enabled=False):
    return contextlib.nullcontext()
"""
RUNNER = """
from sglang.srt.utils.nvtx_utils import profile_range
def forward(name):
    with profile_range(name):
        print("forward")
"""
SCRIPT = """
import sys, torch
from sglang.runner import forward
if __name__ == "__main__":
    print("ARGS", sys.argv[1:])
    forward("step[EXTEND bs=1 toks=4]")
    for name in ("step[EXTEND bs=1 toks=4]", "step[DECODE bs=1]"):
        torch.cuda.cudart().cudaProfilerStart()
        forward(name)
        torch.cuda.cudart().cudaProfilerStop()
    print(torch.cuda.cudart().other())
"""


def _site(folder: Path, nvtx: str | None) -> Path:
    for package in ("torch", "torch/cuda", "sglang", "sglang/srt", "sglang/srt/utils"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("")
    (folder / "torch" / "__init__.py").write_text("import torch.cuda\n")
    (folder / "torch" / "cuda" / "__init__.py").write_text(TORCH)
    if nvtx is not None:
        (folder / "sglang/srt/utils/nvtx_utils.py").write_text(nvtx)
    (folder / "sglang" / "runner.py").write_text(RUNNER if nvtx else "def forward(name): print('forward')\n")
    (folder / "sglang" / "bench_one_batch.py").write_text(SCRIPT)
    return folder


def _launch(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SGLANG_RANGES), *words],
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("as_file", [False, True], ids=["module", "file"])
def test_the_launcher_makes_one_range_of_marked_steps(tmp_path: Path, as_file: bool) -> None:
    site = _site(tmp_path, NVTX)
    words = [str(site / "sglang" / "bench_one_batch.py")] if as_file else ["-m", "sglang.bench_one_batch"]
    done = _launch(site, *words, "--batch", "8")
    assert done.stdout.splitlines() == [
        "ARGS ['--batch', '8']",
        *("PUSH step[EXTEND bs=1 toks=4]", "forward", "POP"),
        "START",
        *("PUSH step[EXTEND bs=1 toks=4]", "forward", "POP"),
        *("PUSH step[DECODE bs=1]", "forward", "POP"),
        "other",
        "SYNC",
        "STOP",
    ], done.stderr


def test_a_sglang_without_spans_runs_and_says_so(tmp_path: Path) -> None:
    done = _launch(_site(tmp_path, None), "-m", "sglang.bench_one_batch")
    assert done.returncode == 0
    assert "PUSH" not in done.stdout
    assert "kernels will have no phase" in done.stderr
