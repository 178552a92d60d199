"""A kernel against its peers: workers in rotation on a simulated GPU, the table, and what is stored."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

import pytest

from harness.bench import peers as peers_module
from harness.bench.peer_evidence import CellSample, PeerEvidence, Variant, read_peer_evidence
from harness.bench.peer_report import ratios, render_peers
from harness.commands import bench_kernels
from harness.context import Context
from harness.errors import EvidenceError, RunError, UnknownWorkloadError, UsageError
from harness.experiments.machine import read_machine
from harness.paths import Paths
from harness.progress import Progress
from harness.vocabulary import ExitCode

ROOT = Path(__file__).resolve().parents[2]
TIMING = ROOT / "tests" / "timing"


@pytest.fixture
def context(tmp_path, monkeypatch):
    kernel = tmp_path / "kernels" / "fake"
    kernel.mkdir(parents=True)
    (kernel.parent / "__init__.py").touch()
    (kernel / "peers.py").write_text((TIMING / "fake_workload.py").read_text())
    (tmp_path / "workloads").mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setattr(peers_module, "REPLAYS", 5)
    monkeypatch.setattr(peers_module, "MACHINE_LOCK", f"\0upkernel-test-{os.getpid()}")
    return Context(Paths(root=tmp_path, state=tmp_path / "state"), Progress(quiet=True))


@pytest.fixture
def python(tmp_path):
    wrapper = tmp_path / "python"
    words = [sys.executable, str(TIMING / "fake_worker.py")]
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(map(shlex.quote, words))} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def bench(context, *words):
    parser = argparse.ArgumentParser()
    bench_kernels.configure(parser)
    return bench_kernels.main(parser.parse_args([*words, "--device", "cpu"]), context)


def test_each_point_is_compared_with_its_best_peer(context, python, capsys):
    arguments = ("fake", "--python", str(python), "--confirm", "--generations", "3", "--evidence", "here")
    assert bench(context, *arguments) is ExitCode.OK
    text = capsys.readouterr().out
    evidence = read_peer_evidence(context.paths.root / "kernels" / "fake" / "evidence" / "here.json")
    found = {one.point: one for one in ratios(evidence, "mine", "cold", ["quick", "steady"])}
    assert (found["small"].best, found["large"].best) == ("quick", "steady")
    assert found["small"].value == pytest.approx(1.2, rel=2e-3)
    assert found["large"].value == pytest.approx(1.5, rel=2e-3)
    assert found[""].value == pytest.approx((1.2 * 1.2 * 1.5) ** (1 / 3), rel=2e-3)
    assert found[""].interval.low < found[""].value < found[""].interval.high
    assert found[""].n == 3
    assert "surely_not_installed" in evidence.missing["absent"]
    assert "geometric mean 1.29" in text
    assert "not here: absent" in text
    row = next(line for line in text.splitlines() if line.startswith("| large"))
    assert row.split("|")[4].strip() == "", "quick does not cover it"
    assert (context.paths.root / "kernels" / "fake" / "evidence" / "here.md").read_text() == text.rstrip("\n") + "\n"


def test_every_kernel_runs_as_often_forwards_as_backwards(context, python):
    bench(context, "fake", "--python", str(python), "--confirm", "--generations", "2", "--variants", "mine", "steady")
    (folder,) = [one for one in context.paths.experiments.iterdir() if one.is_dir()]
    evidence = read_peer_evidence(folder / "evidence.json")
    order = [(one.generation, one.round, one.variant) for one in evidence.samples if one.point == "small"]
    assert order == [
        *((1, 1, "mine"), (1, 1, "steady"), (1, 2, "steady"), (1, 2, "mine")),
        *((2, 1, "steady"), (2, 1, "mine"), (2, 2, "mine"), (2, 2, "steady")),
    ]


def test_a_wrong_kernel_of_ours_is_void_and_has_no_number(context, python, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_ARM", '{"faults": {"middle": "wrong"}}')
    code = bench(context, "fake", "--python", str(python), "--variants", "mine", "steady", "--only", "middle", "large")
    assert code is ExitCode.VOID
    text = capsys.readouterr().out
    assert "void: mine at middle" in text
    assert not any(line.startswith("| middle") for line in text.splitlines())
    assert any(line.startswith("| large") for line in text.splitlines())


def test_without_one_of_ours_there_is_nothing_to_compare(context, python):
    with pytest.raises(RunError, match="none of our kernels runs here"):
        bench(context, "fake", "--python", str(python), "--variants", "steady", "absent")


def test_each_kernel_runs_in_the_python_that_has_what_it_needs(context, python, tmp_path, capsys):
    """`steady` needs numpy here, and its interpreter is one that does not exist: only it is missing."""
    file = context.paths.root / "kernels" / "fake" / "peers.py"
    file.write_text(file.read_text().replace('"factor": 1.5}', '"factor": 1.5, "needs": ("numpy",)}'))
    nowhere = tmp_path / "no-such-python"
    words = ("--python", f"numpy={nowhere}", str(python), "--variants", "mine", "quick", "steady", "--states", "cold")
    assert bench(context, "fake", *words, "--generations", "1") is ExitCode.OK
    text = capsys.readouterr().out
    assert "not here: steady: " in text
    assert "mine, cold" in text
    assert "mine, warm" not in text
    assert any(line.startswith("| small") for line in text.splitlines())


def test_names_that_are_wrong_are_told(context):
    with pytest.raises(UnknownWorkloadError, match="fake"):
        bench(context, "fakee")
    with pytest.raises(UsageError, match="no kernel 'mien'"):
        bench(context, "fake", "--variants", "mien")
    with pytest.raises(UsageError, match="no point of fake"):
        bench(context, "fake", "--only", "huge")
    with pytest.raises(UsageError, match="leave out --patched"):
        bench(context, "fake", "--patched", "vllm/x")
    with pytest.raises(UsageError, match="say what is compared"):
        bench(context)


def test_the_list_has_workloads_kernels_and_points(context, capsys):
    assert bench(context, "--list") is ExitCode.OK
    text = capsys.readouterr().out
    assert "fake: For tests." in text
    assert "3 points: small, middle, large" in text
    assert "needs what is not there" in text


def sample(variant, generation, us, *, point="p", skipped="", problem=""):
    times = {} if skipped else {"cold": us}
    return CellSample(variant, point, generation, 1, times, times, times, 0.001, skipped, problem)


def stored(*samples):
    return PeerEvidence(
        written="2026-01-01T00:00:00+00:00",
        kernel="fake",
        file_digest="0",
        device="a GPU",
        machine=read_machine(),
        software={},
        points=("p", "q"),
        moved={"p": 10**6, "q": 10**6},
        variants={"mine": Variant("ours", ""), "a": Variant("peer", ""), "b": Variant("peer", "")},
        missing={},
        generations=2,
        seed=0,
        replays=5,
        samples=samples,
    )


def test_a_ratio_pairs_ours_with_the_peer_of_the_same_generation():
    """A clock that is 10 % slower in one generation cancels; between the pairs nothing is left but 2 %."""
    evidence = stored(sample("mine", 1, 10.0), sample("a", 1, 12.0), sample("mine", 2, 11.0), sample("a", 2, 13.2))
    (point, mean) = ratios(evidence, "mine", "cold", ["a", "b"])
    assert point.value == pytest.approx(1.2)
    assert point.interval.high - point.interval.low < 1e-9
    assert mean.value == pytest.approx(1.2)


def test_a_void_sample_takes_its_whole_cell_out():
    evidence = stored(
        sample("mine", 1, 10.0), sample("a", 1, 5.0), sample("a", 2, 5.0, problem="results: wrong"), sample("b", 1, 12.0)
    )
    (point, _) = ratios(evidence, "mine", "cold", ["a", "b"])
    assert point.best == "b"
    assert "void: a at p, generation 2: results: wrong" in render_peers(evidence)


def test_evidence_of_another_schema_is_refused(tmp_path):
    file = tmp_path / "x.json"
    file.write_text('{"schema": 7}')
    with pytest.raises(EvidenceError, match="schema version 7"):
        read_peer_evidence(file)


def test_the_checkout_is_not_on_a_workers_import_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), "/elsewhere"]))
    environment = peers_module.worker_environment(tmp_path / "cache", tmp_path)
    assert environment["PYTHONPATH"] == "/elsewhere"
    assert environment["PYTHONSAFEPATH"] == "1"
