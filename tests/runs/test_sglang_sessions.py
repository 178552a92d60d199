"""Sessions of SGLang's scripts against a stand-in: live servers, what they count, and one batch in a fresh process."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.arms.model import Arm, Environment
from harness.progress import Progress
from harness.runs.engine_backend import EngineBackend
from harness.runs.model import GuardReading, RunRequest, RunResult
from harness.trees.model import Tree
from harness.vocabulary import Device, Direction, Engine, Guard, GuardState, Mode, Outcome, Slot, Source, TreeOrigin
from harness.workloads.model import Metric, Script, TokenCounts
from tests.runs.fake_bench import WORKLOAD
from tests.runs.fake_sglang import ONE_BATCH, SERVER, SERVING

SERVE = replace(WORKLOAD, engine=Engine.SGLANG)
BATCH = replace(SERVE, script=Script.LATENCY, primary=Metric("median_decode_latency", "s", Direction.LOWER), secondary=())


@pytest.fixture
def run(tmp_path, bench):
    """Runs a workload once on each slot named, in one generation; the values are variables of the slot's processes."""
    package = tmp_path / "tree" / "python" / "sglang"
    package.mkdir(parents=True)
    for name, text in (("launch_server", SERVER), ("bench_serving", SERVING), ("bench_one_batch", ONE_BATCH)):
        (package / f"{name}.py").write_text(text)
    tree = Tree(Engine.SGLANG, "1", tmp_path / "tree", "python", "0", "0", Source.ARCHIVE, TreeOrigin.BASE, "")
    environment = Environment("fake", Device.CUDA, tmp_path, Path(sys.executable), {}, {}, "0")

    def go(workload, mode: Mode = Mode.LIVE, **variables: str) -> list[RunResult]:
        common = {"PYTHONPATH": str(tree.import_path), **variables}
        arm = Arm("base", (tree,), environment, {}, common, "0")
        backend = EngineBackend(
            arms={Slot.BASE: arm},
            workload=workload,
            mode=mode,
            model=tmp_path,
            progress=Progress(io.StringIO(), quiet=True),
            environment_of=lambda arm, extra: {**os.environ, **arm.variables, **extra},
            modules_of=lambda _arm, _directory: GuardReading(Guard.MODULES, GuardState.PASSED, ""),
        )
        session = backend.open((Slot.BASE,), 0, tmp_path / "generation")[Slot.BASE]
        assert not isinstance(session, RunResult), session.detail
        bench.opened.append(session)
        return [session.run(RunRequest(0, seed, Slot.BASE, seed, tmp_path / f"run-{seed}")) for seed in (1, 2)]

    return go


def reading(result: RunResult, guard: Guard) -> GuardReading:
    return next(one for one in result.guards if one.guard is guard)


def test_two_runs_on_one_server_have_the_seeds_and_the_counts_of_their_own(run):
    results = run(SERVE)
    assert [one.metrics["mean_tpot_ms"] for one in results] == [11.0, 12.0], results[0].detail
    for one in results:
        tokens = reading(one, Guard.TOKENS)
        assert (tokens.state, tokens.detail) == (
            GuardState.PASSED,
            "the server read 40 and wrote 80 tokens, asked for 40 and 80",
        )
        assert reading(one, Guard.PREFIX_CACHE).state is GuardState.PASSED
        assert sum(one.guard is Guard.TOKENS for one in one.guards) == 1


@pytest.mark.parametrize(
    ("counted", "guard", "says"),
    [
        # The client reports the length that it asked for; only the server knows what it became.
        ("prompt_tokens=43&generation_tokens=80", Guard.TOKENS, "the server read 43"),
        ("prompt_tokens=40&generation_tokens=61", Guard.TOKENS, "wrote 61"),
        ("prompt_tokens=40&generation_tokens=80&cached_tokens=8", Guard.PREFIX_CACHE, "8 prompt tokens came from"),
    ],
)
def test_what_only_the_server_knows_fires(run, counted, guard, says):
    fired = reading(run(SERVE, FAKE_COUNTED=counted)[0], guard)
    assert fired.state is GuardState.FIRED
    assert says in fired.detail


def test_an_early_stop_that_the_script_itself_reports_is_not_excused_by_the_server(run):
    workload = replace(SERVE, tokens=TokenCounts(input=40, output=96))
    fired = reading(run(workload, FAKE_COUNTED="prompt_tokens=40&generation_tokens=96")[0], Guard.TOKENS)
    assert fired.state is GuardState.FIRED
    assert "wrote 80 tokens" in fired.detail


def test_one_batch_in_a_fresh_process(run):
    results = run(BATCH, Mode.PROCESS)
    assert [one.metrics["median_decode_latency"] for one in results] == [0.01, 0.02], results[0].detail
    assert reading(results[0], Guard.TOKENS).state is GuardState.PASSED
    assert reading(results[0], Guard.COMPILATION).state is GuardState.PASSED, "it compiled while it warmed up"


def test_one_batch_that_compiles_while_it_is_measured_fires(run):
    fired = reading(run(BATCH, Mode.PROCESS, FAKE_SAYS="ninja: Entering directory")[0], Guard.COMPILATION)
    assert fired.state is GuardState.FIRED


def test_a_batch_that_was_skipped_is_no_result(run):
    result = run(BATCH, Mode.PROCESS, FAKE_SKIPS="1")[0]
    assert result.outcome is Outcome.NO_RESULT
    assert not result.metrics
