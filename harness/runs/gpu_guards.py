"""Conditions on a GPU that can void a run: clocks, throttling, temperature, power, other processes, memory errors.

A thread reads the GPU while the run goes on. Nothing is ever set: pinning clocks is a decision of the host's owner, and
an experiment that alternates its arms does without.
"""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from harness.errors import ProbeError, RunError
from harness.runs.gpu import GpuReader, GpuState, Reason, open_gpu
from harness.runs.guards import MachineWatch
from harness.runs.model import GuardReading
from harness.vocabulary import Device, Guard, GuardState

__all__ = ["GPU_GUARDS", "GpuWatch", "check_free", "gpu_readings", "watch_of_device"]

GPU_GUARDS = (Guard.CLOCKS, Guard.THROTTLE, Guard.TEMPERATURE, Guard.POWER, Guard.PROCESSES, Guard.ECC)
# Seconds between readings. One costs about 1 ms of host time, on a core that the engine does not wait for.
INTERVAL_S = 0.25
# The chip slows itself down at a temperature that it names; this close to it the next runs will not be like this one.
MARGIN_CELSIUS = 3
# A sample with at least this utilisation says how the clocks are under load; an idle GPU clocks down by design.
BUSY_PERCENT = 50
# Slow-downs that come from the chip or the board. The software power cap is not among them: see `_power`.
SLOWDOWNS = Reason.HARDWARE_SLOWDOWN | Reason.THERMAL_SOFTWARE | Reason.THERMAL_HARDWARE | Reason.POWER_BRAKE
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Foreign:
    """A process on the GPU that is not ours. `known` is False for one of another process namespace (a container's host)."""

    pid: int
    bytes: int
    known: bool


def _is_ours(pid: int) -> bool | None:
    """Whether this process or a child of it has that id; None when no process here has it."""
    try:
        process = psutil.Process(pid)
        return os.getpid() in (pid, *(one.pid for one in process.parents()))
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return False


class GpuWatch:
    """Reads the GPU from when it is made until `readings` is asked; that span is the run."""

    def __init__(
        self, reader: GpuReader, is_ours: Callable[[int], bool | None] = _is_ours, interval_s: float = INTERVAL_S
    ) -> None:
        self._reader = reader
        self._is_ours = is_ours
        self._interval_s = interval_s
        self._foreign: dict[int, Foreign] = {}
        self._mine: set[int] = set()
        self._states: list[GpuState] = []
        self._trouble: str | None = None
        self._stop = threading.Event()
        self._read()
        self._thread = threading.Thread(target=self._sample, name="gpu watch", daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._read()
            except Exception as error:  # noqa: BLE001  a reading that fails must end the watch with a word, not the run
                self._trouble = f"reading the GPU failed: {error}"
                return

    def _read(self) -> None:
        state = self._reader.state()
        self._states.append(state)
        for pid, size in (state.processes or {}).items():
            if pid in self._mine:
                continue
            # Asked anew each time for a stranger: a child of ours may show up on the GPU before psutil can see its parent.
            ours = self._is_ours(pid)
            if ours:
                self._mine.add(pid)
                self._foreign.pop(pid, None)
            else:
                before = self._foreign.get(pid, Foreign(pid, 0, known=False))
                self._foreign[pid] = Foreign(pid, max(size, before.bytes), known=ours is not None or before.known)

    def readings(self) -> tuple[GuardReading, ...]:
        """Stop watching, and one reading a guard."""
        self._stop.set()
        self._thread.join()
        if self._trouble is None:
            self._read()
        readings = gpu_readings(self._reader, self._states, tuple(self._foreign.values()))
        if self._trouble is not None:
            return tuple(GuardReading(one.guard, GuardState.ABSENT, self._trouble) for one in readings)
        return readings


def gpu_readings(reader: GpuReader, states: Sequence[GpuState], foreign: Sequence[Foreign]) -> tuple[GuardReading, ...]:
    """Judge the states of one run, in the order of GPU_GUARDS."""
    return (
        _clocks(reader, states),
        _throttle(states),
        _temperature(reader, states),
        _power(states),
        _processes(states, foreign),
        _ecc(states),
    )


def _absent(guard: Guard, what: str) -> GuardReading:
    return GuardReading(guard, GuardState.ABSENT, f"the driver does not tell {what}")


def _range(values: Sequence[float], unit: str) -> str:
    return f"{min(values):.0f} to {max(values):.0f} {unit}, median {statistics.median(values):.0f}, n {len(values)}"


def _clocks(reader: GpuReader, states: Sequence[GpuState]) -> GuardReading:
    """Fires when somebody changed the clock settings meanwhile, or the memory ran below its clock under load.

    The SM clock itself may move: it follows power and load, in both arms alike, and its range is told.
    """
    first, last = states[0], states[-1]
    busy = [one for one in states if (one.busy_percent or 0) >= BUSY_PERCENT]
    sm = [one.sm_mhz for one in busy if one.sm_mhz is not None]
    memory = [one.memory_mhz for one in busy if one.memory_mhz is not None]
    if all(one.sm_mhz is None for one in states):
        return _absent(Guard.CLOCKS, "its clocks")
    found = []
    for what, before, after in (
        ("SM", first.allowed_sm_mhz, last.allowed_sm_mhz),
        ("memory", first.allowed_memory_mhz, last.allowed_memory_mhz),
    ):
        if before != after:
            found.append(f"the {what} clock setting changed during the run, from {before} to {after} MHz")
    limit = first.allowed_memory_mhz or reader.gpu.memory_limit_mhz
    if memory and limit is not None and min(memory) < limit:
        found.append(f"the memory clock fell to {min(memory)} MHz under load, limit {limit} MHz")
    text = f"SM clock under load {_range(sm, 'MHz')}" if sm else "no reading fell into a busy moment"
    if found:
        return GuardReading(Guard.CLOCKS, GuardState.FIRED, f"{'; '.join(found)}; {text}")
    return GuardReading(Guard.CLOCKS, GuardState.PASSED, text)


def _throttle(states: Sequence[GpuState]) -> GuardReading:
    seen = [one.reasons for one in states if one.reasons is not None]
    if not seen:
        return _absent(Guard.THROTTLE, "why its clocks are lowered")
    slow = [one & SLOWDOWNS for one in seen if one & SLOWDOWNS]
    if not slow:
        return GuardReading(Guard.THROTTLE, GuardState.PASSED, f"no slow-down in {len(seen)} readings")
    names = sorted({str(bit.name).lower().replace("_", " ") for one in slow for bit in Reason if bit & one})
    return GuardReading(
        Guard.THROTTLE, GuardState.FIRED, f"slowed down in {len(slow)} of {len(seen)} readings, limit 0: {', '.join(names)}"
    )


def _temperature(reader: GpuReader, states: Sequence[GpuState]) -> GuardReading:
    seen = [one.celsius for one in states if one.celsius is not None]
    if not seen:
        return _absent(Guard.TEMPERATURE, "its temperature")
    text = _range(seen, "°C")
    slowdown = reader.gpu.slowdown_celsius
    if not slowdown:
        return GuardReading(Guard.TEMPERATURE, GuardState.ABSENT, f"{text}; the driver does not tell where it slows down")
    limit = slowdown - MARGIN_CELSIUS
    state = GuardState.FIRED if max(seen) >= limit else GuardState.PASSED
    return GuardReading(Guard.TEMPERATURE, state, f"{text}; limit {limit} °C, {MARGIN_CELSIUS} below where it slows down")


def _power(states: Sequence[GpuState]) -> GuardReading:
    """Fires when the power limit was changed meanwhile. Running into it is told, not punished.

    A compute-bound engine sits at the cap all the time, and how much work the cap leaves is part of what is measured.
    """
    seen = [one.watts for one in states if one.watts is not None]
    if not seen:
        return _absent(Guard.POWER, "its power")
    limits = sorted({one.limit_watts for one in states if one.limit_watts is not None})
    capped = sum(bool((one.reasons or Reason(0)) & Reason.POWER_CAP) for one in states)
    text = f"{_range(seen, 'W')}; held by the power limit in {capped} of {len(states)} readings"
    if len(limits) > 1:
        named = " and ".join(f"{one:.0f}" for one in limits)
        return GuardReading(Guard.POWER, GuardState.FIRED, f"the power limit changed during the run ({named} W); {text}")
    return GuardReading(Guard.POWER, GuardState.PASSED, text + (f"; limit {limits[0]:.0f} W" if limits else ""))


def _processes(states: Sequence[GpuState], foreign: Sequence[Foreign]) -> GuardReading:
    if all(one.processes is None for one in states):
        return _absent(Guard.PROCESSES, "which processes use it")
    known = [one for one in foreign if one.known]
    if known:
        return GuardReading(Guard.PROCESSES, GuardState.FIRED, f"used by others: {_named(known)}")
    if foreign:
        # In a container the driver lists ids of the host, ours among them under other numbers.
        return GuardReading(
            Guard.PROCESSES,
            GuardState.ABSENT,
            f"{len(foreign)} processes on the GPU have ids of another process namespace, so ours cannot be told from others",
        )
    return GuardReading(Guard.PROCESSES, GuardState.PASSED, "no process of others on the GPU")


def _ecc(states: Sequence[GpuState]) -> GuardReading:
    seen = [one.uncorrected for one in states if one.uncorrected is not None]
    if not seen:
        return _absent(Guard.ECC, "its memory errors (ECC is off, or not there)")
    new = seen[-1] - seen[0]
    state = GuardState.FIRED if new > 0 else GuardState.PASSED
    return GuardReading(Guard.ECC, state, f"{new} uncorrected memory errors during the run, limit 0")


def _named(foreign: Sequence[Foreign]) -> str:
    names = []
    for one in sorted(foreign, key=lambda one: -one.bytes):
        try:
            name = psutil.Process(one.pid).name()
        except psutil.Error:
            name = "process"
        names.append(f"{name} (pid {one.pid}) {one.bytes / MIB:.0f} MiB")
    return ", ".join(names)


def check_free(reader: GpuReader, is_ours: Callable[[int], bool | None] = _is_ours) -> None:
    """Raises RunError when other processes are on the GPU, with their ids and what they hold.

    Called while nothing of ours runs, so that ids of another namespace are others' too.
    """
    found = [
        Foreign(pid, size, known=ours is not None)
        for pid, size in (reader.state().processes or {}).items()
        if not (ours := is_ours(pid))
    ]
    if found:
        raise RunError(
            f"{reader.gpu.name} is in use: {_named(found)}. Times taken beside them would be void: wait for them, stop them, "
            "or choose another GPU with CUDA_VISIBLE_DEVICES."
        )


@dataclass(frozen=True, slots=True)
class _Both:
    machine: MachineWatch
    gpu: GpuWatch | str

    def readings(self) -> tuple[GuardReading, ...]:
        if isinstance(self.gpu, str):
            absent = tuple(GuardReading(guard, GuardState.ABSENT, self.gpu) for guard in GPU_GUARDS)
        else:
            absent = self.gpu.readings()
        return (*self.machine.readings(), *absent)


def watch_of_device(device: Device) -> Callable[[], MachineWatch | _Both]:
    """What begins to watch a run on that device. Where NVML cannot be read, every guard of the GPU says so in each run."""
    if device is Device.CPU:
        return MachineWatch
    try:
        reader = open_gpu()
    except ProbeError as error:
        why = str(error)
        return lambda: _Both(MachineWatch(), why)
    return lambda: _Both(MachineWatch(), GpuWatch(reader))
