"""Which device and workload a bench session takes when nobody names them, and what it says on a machine without a GPU."""

from __future__ import annotations

import argparse

import pytest

from harness import cli
from harness.bench import engines, request
from harness.bench.engines import Session, settle
from harness.bench.request import add_arguments, request_of
from harness.errors import UsageError
from harness.paths import Paths
from harness.vocabulary import Device, Engine, ExitCode

SERIES = "vllm/penalties-bin-counts"
VLLM = Session(Engine.VLLM, {Device.CUDA: "vllm/llama-8b-serve", Device.CPU: "vllm/penalties-serve"})


class Said:
    """Keeps what would be printed."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def settled(monkeypatch):
    """What becomes of a command line on a machine that has this device."""

    def make(here: Device, *words: str):
        monkeypatch.setattr(request, "visible_device", lambda: here)
        parser = argparse.ArgumentParser()
        add_arguments(parser, default_series=SERIES, default_device=None)
        args = parser.parse_args(words)
        said = Said()
        context = argparse.Namespace(paths=Paths.of(), progress=said)
        found = settle(context, request_of(args), VLLM, automatic=args.device == "auto")
        return found.device, found.workload, said.lines

    return make


def test_the_workload_of_the_series_decides_even_where_there_is_a_gpu(settled):
    device, workload, said = settled(Device.CUDA)
    assert (device, workload) == (Device.CPU, "vllm/penalties-serve")
    assert said == ["device cpu, workload vllm/penalties-serve (choose with --device and --workload)"]


def test_a_workload_that_is_named_decides_the_device(settled):
    assert settled(Device.CPU, "--workload", "vllm/llama-8b-serve")[:2] == (Device.CUDA, "vllm/llama-8b-serve")
    assert settled(Device.CUDA, "--workload", "vllm/penalties-serve")[:2] == (Device.CPU, "vllm/penalties-serve")


def test_the_noise_of_a_gpu_is_measured_with_the_engines_own_workload_for_it(settled):
    assert settled(Device.CUDA, "--aa")[:2] == (Device.CUDA, "vllm/llama-8b-serve")
    assert settled(Device.CPU, "--aa")[:2] == (Device.CPU, "vllm/penalties-serve")
    assert settled(Device.CPU, "--aa", "--device", "cuda")[:2] == (Device.CUDA, "vllm/llama-8b-serve")


def test_a_device_that_was_asked_for_is_never_exchanged(settled):
    with pytest.raises(UsageError, match=r"no workload here is for cuda: vllm/penalties-serve is for cpu"):
        settled(Device.CUDA, "--device", "cuda")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["bench_sglang", "--aa"], "none of sglang's workloads runs on a CPU"),
        (["bench_flashinfer", "--aa"], "none of flashinfer's workloads runs on a CPU"),
        (["bench_vllm", "--aa", "--device", "cuda"], "--device cpu runs vllm/decode-latency"),
    ],
)
def test_without_a_gpu_a_session_says_what_it_needs_and_what_it_can_do(monkeypatch, capsys, words, says):
    monkeypatch.setattr(engines.shutil, "which", lambda _name: None)
    assert cli.main(words) == ExitCode.ERROR
    printed = capsys.readouterr().err
    assert "needs an NVIDIA driver for CUDA 13" in printed
    assert "30 GB free for each arm" in printed
    assert "--dry-run prints the plan" in printed
    assert says in printed


@pytest.mark.parametrize("words", [["bench_sglang", "--aa", "--dry-run"], ["bench_flashinfer", "--aa", "--dry-run"]])
def test_a_plan_needs_no_gpu(capsys, words):
    assert cli.main(words) == ExitCode.OK
    assert "A/A (base against itself)" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["bench_sglang", "bench_flashinfer"])
def test_an_engine_without_a_series_asks_what_is_compared(capsys, command):
    assert cli.main([command]) == ExitCode.USAGE
    assert "say what is compared: --patched SERIES" in capsys.readouterr().err


def test_flashinfers_script_is_planned_with_a_clone_and_a_kernel_workload_without(capsys, tmp_path):
    cli.main(["bench_flashinfer", "--aa", "--dry-run", "--mirror", str(tmp_path)])
    assert "flashinfer/decode-routine" in capsys.readouterr().out
    cli.main(["bench_flashinfer", "--aa", "--dry-run"])
    printed = capsys.readouterr()
    assert "flashinfer/decode " in printed.out
    assert "--mirror DIR plans FlashInfer's own script" in printed.err
