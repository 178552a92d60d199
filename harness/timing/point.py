"""Measures one point: inputs, graphs, checks before, timed replays, checks after.

Cold: one graph holds a call for each input set, and the sets together are larger than three times the L2. Warm: one graph calls
the first set again and again. Outputs are poisoned before every replay, and compared with the reference before and after the
timed ones; then an input gets other values, and the output must follow.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .compiling import CompileWatch
from .cupti import busy_us
from .device import Device, Program, Span
from .floors import below_floor
from .workfile import Workfile

__all__ = ["Findings", "Prepared", "Settings", "measure", "prepare"]

# Rows may be worse than the tensor by this much before it counts as wrong.
ROW_FACTOR = 4.0
# Calls of the warm graph: as many as the cold one has, and no more than are needed to make a short kernel measurable.
MOST_WARM_CALLS = 16
HOST_CALLS = 30
# Work after the end of the span that is more than waiting for an idle device takes (5 to 20 µs), as time and as a share.
OUTSIDE_US = 60.0
OUTSIDE_SHARE = 0.2
# By how much the kernels of a replay may exceed the span: replays differ by a few percent, CUPTI rounds up to 1 µs each.
BUSY_LIMIT = 1.15
BUSY_US = 5.0
# Elements by which the values of an input move in the check with other values.
SHIFT = 7


@dataclass(frozen=True, slots=True)
class Settings:
    """The same for all arms of an experiment. `rotate` is how many times the L2 the input sets must exceed."""

    states: tuple[str, ...] = ("cold", "warm")
    replays: int = 20
    warm_ms: float = 30.0
    rotate: float = 3.0
    most_sets: int = 2048
    seed: int = 0


@dataclass(slots=True)
class Findings:
    """Guards that fired, by their name in harness.vocabulary.Guard."""

    fired: dict[str, list[str]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def fire(self, guard: str, detail: str) -> None:
        self.fired.setdefault(guard, []).append(detail)


@dataclass(slots=True)
class Prepared:
    """A point made ready: its cases, their recorded calls and expected outputs (of the first and last set)."""

    point: Mapping[str, Any]
    variant: str | None
    cases: list[dict[str, Any]]
    programs: dict[str, Program]
    expected: dict[int, tuple[Any, ...]]
    # Fingerprints of the inputs before the first call.
    prints: tuple[int, ...]
    moved: int
    flops: int
    bytes_held: int

    @property
    def inputs(self) -> list[Any]:
        return [tensor for case in self.cases for tensor in case["inputs"].values()]


def sets_needed(device: Device, moved: int, settings: Settings) -> int:
    """Input sets so that a set is out of the cache when it is used again; two at least."""
    return max(2, min(settings.most_sets, math.ceil(settings.rotate * device.l2_bytes / max(1, moved)) + 1))


def prepare(device: Device, work: Workfile, point: Mapping[str, Any], variant: str | None, settings: Settings) -> Prepared:
    """Make inputs, record the graphs, and compute what should come out. What the workload raises passes through."""
    before = device.used_bytes()
    moved, flops = work.bytes_and_flops(point)
    count = sets_needed(device, moved, settings)
    extra = () if variant is None else (variant,)
    cases = []
    for index in range(count):
        case = work.make(point, device.name if device.name == "cpu" else "cuda", settings.seed + index, *extra)
        case["variant"] = variant
        cases.append(case)
    # Before the first call: one that leaves its input changed may do so only once.
    prints = device.fingerprints([tensor for case in cases for tensor in case["inputs"].values()])
    expected = {}
    if _is_checked(work, variant):
        expected = {index: as_tuple(work.reference(cases[index])) for index in sorted({0, count - 1})}
    programs = {}
    if "cold" in settings.states:
        programs["cold"] = device.record([_bound(work, case) for case in cases], keep=True)
    if "warm" in settings.states:
        programs["warm"] = device.record([_bound(work, cases[0])] * min(count, MOST_WARM_CALLS), keep=False)
    device.synchronize()
    return Prepared(point, variant, cases, programs, expected, prints, moved, flops, device.used_bytes() - before)


def _bound(work: Workfile, case: dict[str, Any]) -> Any:
    return lambda: work.call(case)


def _is_checked(work: Workfile, variant: str | None) -> bool:
    return variant is None or bool(work.variants[variant].get("checked", True))


def as_tuple(value: Any) -> tuple[Any, ...]:
    """One output or several."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def measure(device: Device, work: Workfile, ready: Prepared, settings: Settings) -> dict[str, Any]:
    """Check, time, check. Returns plain values for JSON: times in µs with their samples, errors, and the guards that fired."""
    began = time.perf_counter()
    findings = Findings()
    result: dict[str, Any] = {
        "point": ready.point["name"],
        "mode": device.mode,
        "bytes": ready.moved,
        "flops": ready.flops,
        "sets": len(ready.cases),
        "times": {},
        "errors": {},
    }
    for state, program in ready.programs.items():
        checked = _Checked(device, work, ready, state, findings)
        result["errors"][state] = checked.run_and_check("before")
        result["times"][state] = _timed(device, program, checked, settings, findings)
        result["errors"][state] = max(result["errors"][state], checked.check("after"), key=_badness)
        if program.kernels is not None:
            result.setdefault("kernels", {})[state] = _counted(program.kernels)
            if not program.kernels and work.variants.get(ready.variant or "", {}).get("kernels", True):
                findings.fire("results", f"{state}: the recorded calls launch no kernel")
        _cross_check(device, program, result, state, findings)
        why = below_floor(device, result["times"][state]["us"], ready.moved, ready.flops, cold=state == "cold")
        if why:
            findings.fire("floor", f"{state}: {why}")
    if "host" in settings.states and work.host is not None:
        result["times"]["host"] = _host(device, work, ready, findings)
    if device.fingerprints(ready.inputs) != ready.prints:
        findings.fire("results", "the call changed an input that it may only read")
    elif ready.expected and ready.programs:
        _other_values(device, work, ready, findings)
    if device.peak_bytes is None:
        findings.absent["floor"] = f"no data sheet bandwidth is known here for {device.name}"
    changed = device.persisting_change()
    if changed:
        findings.fire("results", f"the L2 set aside for persisting data changed by {changed} bytes, so a cold time is not one")
    result |= {"fired": findings.fired, "absent": findings.absent, "seconds": time.perf_counter() - began}
    return result


def _cross_check(device: Device, program: Program, result: dict[str, Any], state: str, findings: Findings) -> None:
    """The kernels that CUPTI saw in one more replay must fit into the time that was measured for one."""
    spans = device.spans(program)
    if spans is None:
        return
    calls = len(program.calls)
    busy = busy_us(spans) / calls
    timed = result["times"][state]["us"]
    result.setdefault("cupti", {})[state] = {"us": busy, "kernels": _counted([one.name for one in spans])}
    if busy > timed * BUSY_LIMIT + BUSY_US / calls:
        findings.fire(
            "span",
            f"{state}: kernels ran for {busy:.2f} µs a call by CUPTI, the timed span is {timed:.2f} µs: not all is in it",
        )


def _badness(error: float) -> float:
    return math.inf if math.isnan(error) else error


def _counted(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}


@dataclass(slots=True)
class _Checked:
    """The outputs of one program against the reference."""

    device: Device
    work: Workfile
    ready: Prepared
    state: str
    findings: Findings

    @property
    def program(self) -> Program:
        return self.ready.programs[self.state]

    def tensors(self) -> list[Any]:
        return [one for output in self.program.outputs for one in as_tuple(output)]

    def poison(self) -> None:
        plain = [one for one in self.tensors() if self.device.is_plain(one)]
        self.device.poison(plain)

    def run_and_check(self, when: str) -> float:
        self.poison()
        self.device.replay(self.program)
        return self.check(when)

    def check(self, when: str, expected: Mapping[int, tuple[Any, ...]] | None = None) -> float:
        """The worst error of the sets whose expected output is known; fires the RESULTS guard for what is wrong."""
        expected = self.ready.expected if expected is None else expected
        strange = [type(one).__name__ for one in self.tensors() if not self.device.is_plain(one)]
        if strange:
            self._fire(
                when, f"the output is a {strange[0]}, not a tensor that is there: it may do its work when it is looked at"
            )
            return math.nan
        if not expected:
            return 0.0
        empty = self.device.unwritten(self.tensors())
        if empty:
            total = len(self.tensors())
            self._fire(when, f"{empty} of {total} outputs hold NaN: not written by the timed call, or computed as such")
            return math.nan
        worst = 0.0
        outputs = self.program.outputs
        # The warm program keeps the last output only, and it is of the first set.
        indices = {index: index for index in expected} if self.state == "cold" else {0: -1}
        for index, at in indices.items():
            for number, (out, ref) in enumerate(zip(as_tuple(outputs[at]), expected[index], strict=True)):
                worst = max(worst, self._error(when, f"set {index}, output {number}", out, ref), key=_badness)
        return worst

    def _error(self, when: str, where: str, out: Any, ref: Any) -> float:
        found = self.device.difference(out, ref)
        allowed = self.work.tolerance_of(self.device.dtype(out), self.ready.point, self.ready.variant)
        if not (found.overall <= allowed and found.worst_row <= ROW_FACTOR * allowed):
            self._fire(
                when,
                f"{where} differs from the reference by {found.overall:.3g} (worst row {found.worst_row:.3g}), allowed is "
                f"{allowed:.3g} for {self.device.dtype(out)}",
            )
        return found.overall

    def _fire(self, when: str, what: str) -> None:
        self.findings.fire("results", f"{self.state}, {when} timing: {what}")


def _timed(device: Device, program: Program, checked: _Checked, settings: Settings, findings: Findings) -> dict[str, Any]:
    """Replays, two at least and for `warm_ms`, then those that count: an idle GPU runs its first milliseconds slower."""
    begun, warm = time.perf_counter(), 0
    while warm < 2 or time.perf_counter() - begun < settings.warm_ms / 1e3:
        device.replay(program)
        warm += 1
    watch = CompileWatch()
    spans: list[Span] = []
    for _ in range(settings.replays):
        checked.poison()
        spans.append(device.replay(program))
    compiled = watch.found()
    if compiled:
        findings.fire("compilation", f"{checked.state}: compiled or loaded in the timed window: {', '.join(compiled)}")
    late = [one for one in spans if one.outside_us > max(OUTSIDE_US, OUTSIDE_SHARE * one.us)]
    if len(late) * 2 > len(spans):
        longer = statistics.median(one.outside_us for one in late)
        findings.fire(
            "span",
            f"{checked.state}: the device worked on for {longer:.0f} µs after the end of "
            f"{len(late)} of {len(spans)} spans: something runs outside the timed stream",
        )
    return summary([one.us / len(program.calls) for one in spans], calls=len(program.calls))


def summary(samples: Sequence[float], *, calls: int) -> dict[str, Any]:
    """Median, extremes and samples of the time of one call, in µs."""
    return {
        "us": statistics.median(samples),
        "min": min(samples),
        "max": max(samples),
        "n": len(samples),
        "calls": calls,
        "samples": [round(one, 4) for one in samples],
    }


def _host(device: Device, work: Workfile, ready: Prepared, findings: Findings) -> dict[str, Any]:
    """The host function on the first set, with an idle device before each call."""
    if work.host is None:
        raise ValueError(f"{work.path} has no host function")
    case = ready.cases[0]
    for _ in range(3):
        work.host(case)
    watch = CompileWatch()
    samples = []
    for _ in range(HOST_CALLS):
        device.synchronize()
        start = time.perf_counter()
        work.host(case)
        samples.append((time.perf_counter() - start) * 1e6)
    device.synchronize()
    compiled = watch.found()
    if compiled:
        findings.fire("compilation", f"host: compiled or loaded in the timed window: {', '.join(compiled)}")
    return summary(samples, calls=1)


def _other_values(device: Device, work: Workfile, ready: Prepared, findings: Findings) -> None:
    """Give the first set other values: an output that was kept from an earlier call does not follow."""
    case = ready.cases[0]
    names = tuple(case.get("fresh", ()))
    if not names:
        findings.absent["results"] = "the workload names no input that may change, so a kept output would pass"
        return
    for name in names:
        device.shift(case["inputs"][name], SHIFT)
    try:
        expected = {0: as_tuple(work.reference(case))}
        for state, program in ready.programs.items():
            checked = _Checked(device, work, ready, state, findings)
            checked.poison()
            device.replay(program)
            checked.check("with other input values, after", expected)
    finally:
        for name in names:
            device.shift(case["inputs"][name], -SHIFT)
