"""Fixed evidence of every kind of outcome."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from experiment_fakes import NOON, THROUGHPUT, TPOT, TTFT, plan_of, sample, samples_of

from harness.arms.model import Arm, Environment
from harness.experiments.calibration import AARecord, History
from harness.experiments.machine import Machine
from harness.experiments.verdict import decide
from harness.reports.evidence import Evidence, build_evidence
from harness.runs.model import GuardReading
from harness.trees.model import Tree
from harness.vocabulary import Device, Engine, Guard, GuardState, Outcome, Slot, Source, Tier, TreeOrigin
from harness.workloads.model import EngineWorkload, Script, TokenCounts

MACHINE = Machine(cpu="Test CPU", cores=2, usable_cores=2, memory_gib=23.5, kernel="6.1.0", python="3.11.7")
ENVIRONMENT = Environment(
    name="vllm-0.24.0-cpu-py311",
    device=Device.CPU,
    prefix=Path("/somewhere/environments/vllm"),
    python=Path("/somewhere/environments/vllm/bin/python"),
    wheels={Engine.VLLM: Path("/somewhere/wheel")},
    packages={"torch": "2.11.0", "numpy": "2.2.6"},
    digest="e" * 64,
)
WORKLOAD = EngineWorkload(
    engine=Engine.VLLM,
    name="serve-penalties",
    why="the sampler",
    script=Script.SERVE,
    devices=(Device.CPU,),
    model="/somewhere/models/tiny-llama",
    server_arguments=("--enforce-eager",),
    arguments=("--num-prompts", "16"),
    variables={"VLLM_CPU_KVCACHE_SPACE": "1"},
    primary=TPOT,
    secondary=(THROUGHPUT, TTFT),
    tokens=TokenCounts(1024, 3072),
    warmup_runs=1,
    start_timeout_s=300.0,
    run_timeout_s=180.0,
    links=(),
    digest="d" * 64,
)
NOISE = (0.001, -0.0005, 0.0007, -0.001, 0.0004, -0.0002)
LOADED = GuardReading(Guard.LOAD, GuardState.FIRED, "load 1.9 before the run, limit 0.5")
READ = (
    GuardReading(Guard.LOAD, GuardState.PASSED, "load 0.1 before the run, limit 0.5"),
    GuardReading(Guard.COMPILATION, GuardState.ABSENT, "no compiler log on a CPU"),
)


def arm(tip: str, origin: TreeOrigin, label: str, digest: str) -> Arm:
    tree = Tree(Engine.VLLM, "0.24.0", Path("/somewhere/trees") / tip[:12], "", "f" * 40, tip, Source.ARCHIVE, origin, label)
    variables = {
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": "/somewhere/trees",
        "PYTHONPYCACHEPREFIX": "/somewhere/arms/x/bytecode",
        "FLASHINFER_WORKSPACE_BASE": "/somewhere/arms/jit-0",
    }
    return Arm(label or "base", (tree,), ENVIRONMENT, {"vllm/_C.so": "a" * 64}, variables, digest)


def noisy(ratio, noise=NOISE):
    return lambda generation, position, slot: (
        33.0
        * (ratio if slot is Slot.PATCHED else 1.0)
        * (1.0 if slot is Slot.BASE else math.exp(noise[(generation - 1) % 6]))
        * (1 + position / 2000)
    )


def filled(plan, ratio, noise=NOISE):
    """All metrics: TPOT as the model says, throughput its inverse, TTFT with noise of its own."""
    made = []
    for number, one in enumerate(samples_of(plan, noisy(ratio, noise))):
        tpot = one.metrics[TPOT.key]
        metrics = {TPOT.key: tpot, THROUGHPUT.key: 15_000 / tpot, TTFT.key: 120.0 + (number * 7919) % 23}
        made.append(dataclasses.replace(one, metrics=metrics, guards=READ, log=f"runs/{one.generation}/{one.position}/log.txt"))
    return made


def history(plan):
    record = AARecord(
        "20261101-120000-serve-penalties-aa-confirm", "2026-11-01T12:00:00+00:00", Tier.CONFIRM, 0.002, (0.003, 0.001)
    )
    return {plan.primary.key: History((record,))}


def _confirm(ratio, noise=NOISE):
    plan = plan_of(secondary=(THROUGHPUT, TTFT))
    return plan, filled(plan, ratio, noise), history(plan)


def _void():
    plan, made, known = _confirm(0.9)
    index = next(number for number, one in enumerate(made) if (one.generation, one.position) == (3, 2))
    made[index] = dataclasses.replace(made[index], outcome=Outcome.CRASHED, metrics={}, detail="trace\na|b <details> died")
    return plan, made[: index + 1], known


def _replaced():
    plan, made, known = _confirm(0.9)
    index = next(number for number, one in enumerate(made) if (one.generation, one.position) == (2, 5))
    made[index] = dataclasses.replace(made[index], guards=(LOADED,))
    again = [
        sample(plan, 2, one.position, 0.0, attempt=1, metrics=one.metrics, guards=READ) for one in made if one.generation == 2
    ]
    return plan, made + again, known


def _screen(ratio, *, aa=False):
    plan = plan_of(Tier.SCREEN, secondary=(THROUGHPUT, TTFT), aa=aa)
    return plan, filled(plan, ratio), {}


CASES = {
    "confirm-faster": lambda: _confirm(0.912),
    "confirm-slower": lambda: _confirm(1.05),
    "confirm-equivalent": lambda: _confirm(1.0),
    "confirm-inconclusive": lambda: _confirm(0.98, (0.05, -0.04, 0.06, -0.05, 0.03, -0.02)),
    "confirm-void": _void,
    "confirm-replaced": _replaced,
    "screen-worth-confirming": lambda: _screen(0.912),
    "screen-no-sign": lambda: _screen(0.995),
    "screen-aa": lambda: _screen(1.0, aa=True),
}


def evidence_of(case: str) -> Evidence:
    plan, samples, known = CASES[case]()
    base = arm("ee0da84ab" + "0" * 31, TreeOrigin.BASE, "", plan.arms[Slot.BASE].digest)
    patched = base if plan.aa else arm("1234567890" * 4, TreeOrigin.SERIES, "vllm/penalties-bin-counts", "c" * 64)
    arms = {Slot.BASE: base, Slot.PATCHED: patched} | ({Slot.CONTROL: base} if plan.control else {})
    return build_evidence(
        plan, samples, decide(plan, samples, known), workload=WORKLOAD, machine=MACHINE, arms=arms, history=known, now=NOON
    )
