"""What a run of an engine's script needs of its arm: the server, the environment, the command, the result, the modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.arms.model import Arm
from harness.arms.modules import check_modules
from harness.arms.variables import RECORD_VARIABLE, arm_environment
from harness.progress import Progress
from harness.runs.guards import MachineWatch, error_guard, outputs_guard, token_guard
from harness.runs.model import GuardReading, RunRequest, RunResult
from harness.runs.outcomes import classify, describe, failure_text
from harness.runs.process import End, make_folder
from harness.runs.server import Server
from harness.vocabulary import Mode, Outcome, Slot
from harness.workloads.model import EngineWorkload
from harness.workloads.results import ScriptResult
from harness.workloads.scripts import EngineScripts, ScriptCall, scripts_of

__all__ = ["EngineCalls", "ModuleCheck", "Watch"]

ArmEnvironment = Callable[[Arm, Mapping[str, str]], dict[str, str]]
ModuleCheck = Callable[[Arm, Path], GuardReading]


class Watch(Protocol):
    """Looks at the machine from when it was made until it is asked."""

    def readings(self) -> tuple[GuardReading, ...]: ...


@dataclass(frozen=True, slots=True)
class EngineCalls:
    """What the sessions of an experiment are made of. `model` is the folder of the made synthetic model or of the real one."""

    arms: Mapping[Slot, Arm]
    workload: EngineWorkload
    mode: Mode
    model: Path
    progress: Progress
    # Fixed ports for the servers; a slot that is not named gets a free one.
    ports: Mapping[Slot, int] = field(default_factory=dict)
    environment_of: ArmEnvironment = arm_environment
    modules_of: ModuleCheck = check_modules
    watch_of: Callable[[], Watch] = MachineWatch

    @property
    def scripts(self) -> EngineScripts:
        return scripts_of(self.workload.engine)

    def start_server(self, slot: Slot, directory: Path) -> Server:
        """Start, but do not wait for, the server of a slot, with its log and module record in `directory`."""
        make_folder(directory)
        arm = self.arms[slot]
        return Server(
            lambda port: arm.command(*self.scripts.server(self.workload, self.model, port)),
            environment=self.environment(slot, directory),
            directory=directory,
            port=self.ports.get(slot),
        )

    def environment(self, slot: Slot, directory: Path) -> dict[str, str]:
        """Environment of one process of an arm that records its modules below `directory`."""
        records = _records(directory)
        make_folder(records)
        # Unbuffered, so that a log has the script's and the engine's lines in the order in which they were said.
        own = {RECORD_VARIABLE: str(records), "PYTHONUNBUFFERED": "1"}
        return self.environment_of(self.arms[slot], {**self.workload.variables, **own})

    def script(self, request: RunRequest, server: Server | None) -> tuple[str, ...]:
        """Arguments for the arm's Python that run the script once; what it reads is written now."""
        call = ScriptCall(
            workload=self.workload,
            trees=self.arms[request.slot].trees,
            model=self.model,
            directory=request.directory,
            seed=request.seed,
            port=server.port if server else None,
        )
        self.scripts.prepare(call)
        return self.scripts.script(call)

    def judge(self, end: End, directory: Path) -> tuple[RunResult, list[GuardReading], ScriptResult | None]:
        """The result of a script that has ended; guards of the machine and the server are the caller's."""
        outcome = classify(end)
        if outcome is not Outcome.OK:
            detail = failure_text(f"the {self.workload.script} script failed: {describe(end)}", end)
            return RunResult(outcome, detail=detail, log=end.log), [], None
        result = self.scripts.read(directory / self.scripts.result_name, self.workload)
        guards = [error_guard(result), token_guard(result, self.workload), outputs_guard(result)]
        if result.outcome is not Outcome.OK:
            detail = failure_text(result.problem, end)
            return RunResult(result.outcome, detail=detail, log=end.log), guards, result
        detail = "; ".join(f"{key} {reason}" for key, reason in result.missing.items())
        return RunResult(Outcome.OK, result.metrics, detail=detail, log=end.log), guards, result

    def modules(self, slot: Slot, directory: Path) -> GuardReading:
        """The modules of every process that recorded below the directory."""
        return self.modules_of(self.arms[slot], _records(directory))


def _records(directory: Path) -> Path:
    return directory / "modules"
