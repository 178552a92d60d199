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
from harness.workloads.synthetic import make_model
from harness.workloads.vllm_commands import script_command

__all__ = ["workload_command"]


def workload_command(
    context: Context, name: str, *, patched: str, pin: str, device: Device, folder: Path
) -> tuple[Engine, tuple[str, ...], Mapping[str, str]]:
    """Engine, command and environment. Raises UsageError for a workload whose script cannot be profiled from outside."""
    workload = read_workload(context.paths, name)
    if workload.engine is not Engine.VLLM or workload.script is Script.SERVE:
        raise UsageError(
            f"workload {name} runs {workload.engine}'s {workload.script}: of workloads, vLLM's latency and throughput scripts "
            "can be profiled; give any other command after a second --"
        )
    found = read_pins(context.paths.pins_file).find(workload.engine, pin)
    arm = arm_for(context.paths, found, patched, device, context.progress)
    model = make_model(context.paths, workload.model)
    command = (str(arm.environment.python), *script_command(workload, model, folder, seed=0))
    return workload.engine, command, arm_environment(arm, workload.variables)
