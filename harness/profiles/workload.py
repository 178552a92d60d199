"""A workload's own script on an arm of this checkout, as the bench sessions would run it, for the profiler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.arms.resolve import arm_for
from harness.arms.variables import arm_environment
from harness.context import Context
from harness.errors import UsageError
from harness.pins.reader import read_pins
from harness.vocabulary import Device, Engine
from harness.workloads.model import Script
from harness.workloads.reader import read_workload
from harness.workloads.scripts import ScriptCall, scripts_of
from harness.workloads.synthetic import make_model

__all__ = ["workload_command"]

# The scripts that open the profiler's range from their command line (engines.py).
PROFILED = {Engine.VLLM: (Script.LATENCY, Script.THROUGHPUT), Engine.SGLANG: (Script.LATENCY,)}


def workload_command(
    context: Context, name: str, *, patched: str, pin: str, device: Device, folder: Path
) -> tuple[Engine, tuple[str, ...], Mapping[str, str]]:
    """Engine, command and environment. Raises UsageError for a workload whose script cannot be profiled from outside."""
    workload = read_workload(context.paths, name)
    if workload.script not in PROFILED.get(workload.engine, ()):
        able = "; ".join(f"{engine}: {' and '.join(scripts)}" for engine, scripts in PROFILED.items())
        raise UsageError(
            f"workload {name} runs the {workload.script} script of {workload.engine}; those that can be profiled as workloads "
            f"are {able}. Give any other command after a second --"
        )
    found = read_pins(context.paths.pins_file).find(workload.engine, pin)
    arm = arm_for(context.paths, found, patched, device, context.progress)
    scripts = scripts_of(workload.engine)
    call = ScriptCall(
        workload=workload, trees=arm.trees, model=make_model(context.paths, workload.model), directory=folder, seed=0
    )
    scripts.prepare(call)
    return workload.engine, arm.command(*scripts.script(call)), arm_environment(arm, workload.variables)
