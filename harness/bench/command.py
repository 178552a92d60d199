"""The end of a bench session that a person sees: the plan, the report, where things are, the exit code."""

from __future__ import annotations

import sys
from collections import Counter

from harness.bench.costs import known_costs
from harness.bench.experiment import BackendMaker, exit_code, inputs_of, keep_evidence, plan_of, resume, run_new
from harness.bench.request import BenchRequest
from harness.context import Context
from harness.experiments.cost import describe
from harness.reports.evidence import Evidence
from harness.reports.terminal import render_terminal
from harness.vocabulary import Engine, ExitCode

__all__ = ["run_bench"]


def run_bench(
    context: Context, engine: Engine, request: BenchRequest, maker: BackendMaker, *, default_workload: str
) -> ExitCode:
    """Plan, measure and report; the worst exit code when several experiments were asked for."""
    if request.resume is not None:
        return _report(context, request, resume(context, request, engine, maker))
    inputs = inputs_of(context, engine, request, default_workload=default_workload)
    if request.dry_run:
        print(describe(plan_of(context, request, inputs, None, request.seed)))
        if not known_costs(context.paths, inputs.workload_id, inputs.mode).measured:
            print("            (a guess from other machines: nothing of this workload has run here yet)")
        return ExitCode.OK
    codes: list[ExitCode] = []
    outcomes: Counter[str] = Counter()
    for evidence in run_new(context, request, inputs, maker):
        codes.append(_report(context, request, evidence))
        outcomes[str(evidence.decision.outcome)] += 1
    if request.repeat > 1:
        print(f"{request.repeat} experiments: " + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))
    return max(codes, key=_severity)


def _severity(code: ExitCode) -> int:
    return (ExitCode.OK, ExitCode.INCONCLUSIVE, ExitCode.SLOWER, ExitCode.VOID, ExitCode.ERROR).index(code)


def _report(context: Context, request: BenchRequest, evidence: Evidence) -> ExitCode:
    print(render_terminal(evidence, colour=sys.stdout.isatty()))
    folder = context.paths.experiments / evidence.plan.id
    context.progress.say(f"evidence.json, report.md, samples and logs are in {folder}")
    if request.keep:
        for file in keep_evidence(context, evidence):
            context.progress.say(f"kept {file}; list it in the series' series.toml under evidence")
    code = exit_code(evidence, request.fail_on)
    if code is ExitCode.ERROR:
        context.progress.warn(f"{evidence.decision.outcome} is named by --fail-on, so the exit code is {code}")
    return code
