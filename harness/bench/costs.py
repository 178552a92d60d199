"""What starting and running took before, for the estimate of a new plan."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from harness.errors import EvidenceError
from harness.experiments.store import experiments, read_experiment
from harness.paths import Paths
from harness.vocabulary import Mode, Outcome

__all__ = ["KnownCosts", "known_costs"]


@dataclass(frozen=True, slots=True)
class KnownCosts:
    """Medians in seconds over the newest experiment of the same workload and mode, or a guess where there was none."""

    start_seconds: float | None
    run_seconds: float
    measured: bool


# What the workloads of this repository took on 2 cores of an AMD EPYC. An engine with dummy weights of 8B parameters starts
# on one H200 in about the same time once its caches are warm (95 to 190 s when they are not).
GUESS = {Mode.LIVE: KnownCosts(75.0, 7.0, measured=False), Mode.PROCESS: KnownCosts(None, 95.0, measured=False)}


def known_costs(paths: Paths, workload: str, mode: Mode) -> KnownCosts:
    """Looks from the newest experiment back; one that cannot be read is passed over, since this is only an estimate."""
    for name in reversed(experiments(paths)):
        try:
            plan, samples = read_experiment(paths, name)
        except EvidenceError:
            continue
        if plan.workload != workload or plan.mode is not mode:
            continue
        starts = [one.seconds for one in samples if one.position == 0 and one.outcome is Outcome.OK]
        runs = [one.seconds for one in samples if one.position > 0 and one.outcome is Outcome.OK]
        if runs and (starts or mode is Mode.PROCESS):
            return KnownCosts(statistics.median(starts) if starts else None, statistics.median(runs), measured=True)
    return GUESS[mode]
