"""Conditions on a CPU machine that can void a run: other load, memory, failed requests, token counts."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

from harness.runs.model import GuardReading
from harness.runs.outcomes import without_paths
from harness.vocabulary import Guard, GuardState
from harness.workloads.model import EngineWorkload
from harness.workloads.results import ScriptResult

__all__ = [
    "LOAD_LIMIT",
    "MEMORY_LIMIT",
    "MachineWatch",
    "error_guard",
    "machine_now",
    "outputs_guard",
    "token_guard",
]

# Cores that processes other than ours (and the hypervisor) may take on average over a run, as a share of all cores:
# a desktop at rest and the kernel's own threads stay below 2 %, one foreign busy process on 2 cores is 50 %.
LOAD_LIMIT = 0.05
# Processes that a message names, and the cores below which one is not worth naming.
SHOWN = 3
LEAST_SHOWN = 0.01
# Bytes that must stay available, so that neither the page cache nor the swap decides the times.
MEMORY_LIMIT = 1024**3


@dataclass(frozen=True, slots=True)
class _Usage:
    """CPU seconds since boot (whole machine) and since start (our tree)."""

    at: float
    busy: float
    stolen: float
    ours: float
    swapped: int
    # CPU seconds since start of each process that is not ours: (pid, start time) -> (name, seconds).
    others: Mapping[tuple[int, float], tuple[str, float]] = field(default_factory=dict)


def _others() -> dict[tuple[int, float], tuple[str, float]]:
    """Every process outside our tree, so that a message can name the ones that disturb."""
    me = psutil.Process()
    ours = {me.pid, *(one.pid for one in me.children(recursive=True))}
    found: dict[tuple[int, float], tuple[str, float]] = {}
    for process in psutil.process_iter():
        if process.pid in ours:
            continue
        try:
            with process.oneshot():
                times = process.cpu_times()
                found[process.pid, process.create_time()] = (process.name(), times.user + times.system)
        except psutil.Error:
            # It ended meanwhile.
            continue
    return found


def busiest(before: _Usage, after: _Usage) -> str:
    """The processes that are not ours and used most CPU between two readings: "cc1plus (pid 812) 0.93 cores"."""
    seconds = max(after.at - before.at, 1e-9)
    used = {
        key: (name, (total - before.others.get(key, ("", 0.0))[1]) / seconds) for key, (name, total) in after.others.items()
    }
    top = sorted(used.items(), key=lambda item: -item[1][1])[:SHOWN]
    named = [f"{name} (pid {pid}) {cores:.2f} cores" for (pid, _), (name, cores) in top if cores >= LEAST_SHOWN]
    return ", ".join(named) or "none that still runs; short-lived ones are not listed"


def _ours() -> float:
    """CPU seconds of this process and everything below it, dead children included once their parents have waited for them.

    A supervisor adopts and reaps all that lies below it, so nothing of a run is lost from this sum.
    """
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            # It ended between the listing and the reading; its parent has its time from now on.
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _usage() -> _Usage:
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + times.irq + times.softirq
    # ours last: what a child of ours uses between the two readings must not look like somebody else's.
    return _Usage(
        at=time.monotonic(),
        busy=busy,
        stolen=times.steal,
        ours=_ours(),
        swapped=psutil.swap_memory().sin + psutil.swap_memory().sout,
        others=_others(),
    )


class MachineWatch:
    """Reads the machine when made and again in `readings`: the span between is the run."""

    def __init__(self) -> None:
        self._lowest = psutil.virtual_memory().available
        self._before = _usage()

    def readings(self) -> tuple[GuardReading, ...]:
        after = _usage()
        return (self._load(after), self._memory(after))

    def _load(self, after: _Usage) -> GuardReading:
        seconds = after.at - self._before.at
        # Those that this process may use: on 2 of a host's 64 cores one foreign busy process is no small share.
        cores = len(os.sched_getaffinity(0))
        if seconds <= 0:
            return GuardReading(Guard.LOAD, GuardState.ABSENT, "the run took no time, so the load during it is not known")
        busy = after.busy - self._before.busy
        ours = after.ours - self._before.ours
        stolen = after.stolen - self._before.stolen
        # The kernel counts in ticks of 10 ms at several places, so a small negative difference is 0.
        others = max(0.0, busy - ours) / seconds
        share = others + stolen / seconds
        limit = LOAD_LIMIT * cores
        text = (
            f"other processes {others:.2f} cores and the hypervisor {stolen / seconds:.2f} cores on average "
            f"over {seconds:.1f} s, limit {limit:.2f} of {cores} cores together"
        )
        if share <= limit:
            return GuardReading(Guard.LOAD, GuardState.PASSED, text)
        return GuardReading(Guard.LOAD, GuardState.FIRED, f"{text}; busiest: {busiest(self._before, after)}")

    def _memory(self, after: _Usage) -> GuardReading:
        lowest = min(self._lowest, psutil.virtual_memory().available)
        swapped = after.swapped - self._before.swapped
        state = GuardState.FIRED if lowest < MEMORY_LIMIT or swapped > 0 else GuardState.PASSED
        return GuardReading(
            Guard.MEMORY,
            state,
            f"{lowest / 1024**3:.1f} GiB available, limit {MEMORY_LIMIT / 1024**3:.1f} GiB; "
            f"{swapped / 1024**2:.1f} MiB swapped during the run, limit 0",
        )


def machine_now(seconds: float = 0.5) -> tuple[GuardReading, ...]:
    """The machine before anything of ours runs: what would void a run, told before the minutes that a start takes."""
    watch = MachineWatch()
    time.sleep(seconds)
    return watch.readings()


def error_guard(result: ScriptResult) -> GuardReading:
    """Every request of the run must have succeeded; the scripts that do not count requests raise at the first failure."""
    if result.failed is None or result.completed is None:
        return GuardReading(
            Guard.ERRORS, GuardState.ABSENT, "this script does not count failed requests; it ends at the first one"
        )
    state = GuardState.PASSED if result.failed == 0 and result.completed > 0 else GuardState.FIRED
    first = f"; first error: {without_paths(result.error)}" if result.error else ""
    return GuardReading(
        Guard.ERRORS, state, f"{result.failed} requests failed and {result.completed} completed, limit 0 failed{first}"
    )


def token_guard(result: ScriptResult, workload: EngineWorkload) -> GuardReading:
    """The engine must have read and written what was asked: an early stop or a re-tokenised prompt changes what is timed."""
    wanted = workload.tokens
    if wanted is None:
        return GuardReading(Guard.TOKENS, GuardState.ABSENT, "the workload says nothing about its token counts")
    if result.tokens is not None:
        state = GuardState.PASSED if result.tokens == wanted else GuardState.FIRED
        return GuardReading(
            Guard.TOKENS,
            state,
            f"read {result.tokens.input} and wrote {result.tokens.output} tokens, asked for {wanted.input} and {wanted.output}",
        )
    if result.tokens_total is not None:
        total = wanted.input + wanted.output
        state = GuardState.PASSED if result.tokens_total == total else GuardState.FIRED
        return GuardReading(Guard.TOKENS, state, f"{result.tokens_total} tokens in all, asked for {total}")
    return GuardReading(Guard.TOKENS, GuardState.ABSENT, "this script does not report token counts")


def outputs_guard(result: ScriptResult) -> GuardReading:
    """What was generated, by its hash, so that the runs of a pair, which get the same prompts, can be compared.

    It never fires: one run cannot tell whether its text is right, and engines may round differently from run to run.
    """
    if not result.outputs:
        return GuardReading(Guard.OUTPUTS, GuardState.ABSENT, "this script does not keep the text that was generated")
    texts = (result.completed or 0) + (result.failed or 0)
    return GuardReading(Guard.OUTPUTS, GuardState.PASSED, f"{texts} texts, sha256 {result.outputs}")
