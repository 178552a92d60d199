import dataclasses
import itertools
import os
import sys
import types

import pytest

from harness.bench import devices
from harness.errors import ProbeError, RunError
from harness.experiments.samples import DISTURBANCES
from harness.runs import gpu
from harness.runs.gpu import Gpu, GpuState, Reason, chosen_index, open_gpu
from harness.runs.gpu_guards import GPU_GUARDS, Foreign, GpuWatch, check_free, gpu_readings, watch_of_device
from harness.runs.guards import MachineWatch
from harness.vocabulary import Device, Guard, GuardState

H200 = Gpu("NVIDIA H200", "580.95.05", 139.8, 16896, 1980, 3201, 87, ecc=True, mig=False)
STATE = GpuState(1980, 3201, 1980, 3201, 90, Reason(0), 45, 400.0, 700.0, 0, {})


class FakeReader:
    """Gives the states one after the other, and the last one for ever."""

    def __init__(self, *states, gpu=H200):
        self.gpu = gpu
        self._states = itertools.chain(states, itertools.repeat(states[-1]))

    def state(self):
        return next(self._states)


def changed(**values):
    return dataclasses.replace(STATE, **values)


def judged(*states, gpu=H200, foreign=()):
    return {one.guard: one for one in gpu_readings(FakeReader(STATE, gpu=gpu), states, foreign)}


def test_a_quiet_gpu_passes_all_guards_with_its_numbers():
    found = judged(STATE, changed(sm_mhz=1900, celsius=47, watts=500.0), STATE)
    assert tuple(found) == GPU_GUARDS
    assert {one.state for one in found.values()} == {GuardState.PASSED}
    assert "1900 to 1980 MHz, median 1980, n 3" in found[Guard.CLOCKS].detail
    assert "45 to 47 °C, median 45, n 3; limit 84 °C" in found[Guard.TEMPERATURE].detail
    assert "400 to 500 W" in found[Guard.POWER].detail
    assert "limit 700 W" in found[Guard.POWER].detail


@pytest.mark.parametrize(
    ("states", "guard", "text"),
    [
        ((STATE, changed(allowed_sm_mhz=1500)), Guard.CLOCKS, "SM clock setting changed during the run, from 1980 to 1500 MHz"),
        ((STATE, changed(memory_mhz=2619), STATE), Guard.CLOCKS, "memory clock fell to 2619 MHz under load, limit 3201"),
        ((STATE, changed(reasons=Reason.THERMAL_SOFTWARE)), Guard.THROTTLE, "1 of 2 readings, limit 0: thermal software"),
        ((STATE, changed(reasons=Reason.POWER_BRAKE)), Guard.THROTTLE, "power brake"),
        ((STATE, changed(celsius=84)), Guard.TEMPERATURE, "limit 84 °C"),
        ((STATE, changed(limit_watts=500.0)), Guard.POWER, "power limit changed during the run (500 and 700 W)"),
        ((STATE, changed(uncorrected=2)), Guard.ECC, "2 uncorrected memory errors"),
    ],
)
def test_what_makes_times_incomparable_fires_its_guard_alone(states, guard, text):
    found = judged(*states)
    assert [one.guard for one in found.values() if one.state is GuardState.FIRED] == [guard]
    assert text in found[guard].detail
    assert guard in DISTURBANCES  # of the machine, not of an arm


def test_an_idle_gpu_may_clock_down():
    found = judged(changed(sm_mhz=345, memory_mhz=2619, busy_percent=0, reasons=Reason.IDLE), STATE)
    assert found[Guard.CLOCKS].state is GuardState.PASSED
    assert found[Guard.THROTTLE].state is GuardState.PASSED


def test_the_power_cap_is_told_and_does_not_void():
    found = judged(STATE, changed(reasons=Reason.POWER_CAP, sm_mhz=1600, watts=698.0))
    assert found[Guard.POWER].state is GuardState.PASSED
    assert "held by the power limit in 1 of 2 readings" in found[Guard.POWER].detail
    assert found[Guard.THROTTLE].state is GuardState.PASSED


def test_what_the_driver_does_not_tell_is_absent_not_passed():
    nothing = GpuState(*[None] * 11)
    found = judged(nothing, nothing, gpu=Gpu("vGPU", "580", 40.0, *[None] * 6))
    assert {one.state for one in found.values()} == {GuardState.ABSENT}
    known = judged(STATE, gpu=dataclasses.replace(H200, slowdown_celsius=None))
    assert known[Guard.TEMPERATURE].state is GuardState.ABSENT
    assert "45" in known[Guard.TEMPERATURE].detail


def test_processes_of_others_fire_and_those_of_another_namespace_cannot_be_told():
    found = judged(STATE, foreign=(Foreign(os.getpid(), 3 * 2**30, known=True),))[Guard.PROCESSES]
    assert found.state is GuardState.FIRED
    assert f"(pid {os.getpid()}) 3072 MiB" in found.detail
    found = judged(STATE, foreign=(Foreign(4242, 0, known=False),))[Guard.PROCESSES]
    assert found.state is GuardState.ABSENT
    assert "another process namespace" in found.detail


def test_a_watch_sees_what_happens_between_its_ends_and_takes_a_child_for_ours():
    # 7 is a stranger, 8 is ours from its second reading on, when its parent is known.
    answers = {7: itertools.repeat(False), 8: itertools.chain([False], itertools.repeat(True))}
    reader = FakeReader(STATE, changed(processes={7: 100, 8: 5}, celsius=86), changed(processes={8: 5}), STATE)
    watch = GpuWatch(reader, is_ours=lambda pid: next(answers[pid]), interval_s=0.002)
    while watch._thread.is_alive() and len(watch._states) < 6:
        pass
    found = {one.guard: one for one in watch.readings()}
    assert not watch._thread.is_alive()
    assert found[Guard.TEMPERATURE].state is GuardState.FIRED
    assert found[Guard.PROCESSES].state is GuardState.FIRED
    assert "pid 7" in found[Guard.PROCESSES].detail
    assert "pid 8" not in found[Guard.PROCESSES].detail


def test_a_gpu_that_is_lost_meanwhile_makes_all_its_guards_absent():
    class Lost(FakeReader):
        def state(self):
            if self.gone:
                raise OSError("GPU is lost")
            self.gone = True
            return STATE

        gone = False

    watch = GpuWatch(Lost(STATE), interval_s=0.001)
    watch._thread.join(timeout=10)
    found = watch.readings()
    assert [one.guard for one in found] == list(GPU_GUARDS)
    assert {(one.state, one.detail) for one in found} == {(GuardState.ABSENT, "reading the GPU failed: GPU is lost")}


def test_a_gpu_in_use_is_refused_with_pid_and_memory():
    busy = FakeReader(changed(processes={os.getpid(): 512 * 2**20}))
    with pytest.raises(RunError, match=rf"NVIDIA H200 is in use: .*\(pid {os.getpid()}\) 512 MiB.*CUDA_VISIBLE_DEVICES"):
        check_free(busy, is_ours=lambda _pid: False)
    check_free(busy)  # this very process is ours
    check_free(FakeReader(STATE))


def test_a_machine_without_nvml_says_so_in_every_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ProbeError, match="nvidia-ml-py is missing"):
        open_gpu()
    readings = watch_of_device(Device.CUDA)().readings()
    assert [one.guard for one in readings] == [Guard.LOAD, Guard.MEMORY, *GPU_GUARDS]
    assert all("nvidia-ml-py" in one.detail and one.state is GuardState.ABSENT for one in readings[2:])
    assert watch_of_device(Device.CPU) is MachineWatch


@pytest.mark.parametrize(("value", "index"), [(None, 0), ("3,1", 3), (" GPU-ab12,GPU-cd34", "GPU-ab12")])
def test_the_gpu_is_the_one_that_cuda_uses_first(value, index):
    assert chosen_index({} if value is None else {"CUDA_VISIBLE_DEVICES": value}) == index


@pytest.mark.parametrize("value", ["", "-1"])
def test_no_visible_gpu_is_an_error(value):
    with pytest.raises(ProbeError, match="hides every GPU"):
        chosen_index({"CUDA_VISIBLE_DEVICES": value})


class FakeNvml(types.ModuleType):
    """The calls of nvidia-ml-py that are used, on a device that supports all but ECC counts."""

    class NVMLError(Exception):
        pass

    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = NVML_CLOCK_SM = NVML_TEMPERATURE_GPU = 1
    NVML_CLOCK_MEM = NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = 2

    def __init__(self, *, driver=True):
        super().__init__("pynvml")
        self.driver = driver

    def nvmlInit(self):  # noqa: N802
        if not self.driver:
            raise self.NVMLError("NVML Shared Library Not Found")

    def __getattr__(self, name):
        answers = {
            "nvmlDeviceGetHandleByIndex": f"handle {name}",
            "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(total=140 * 2**30),
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlSystemGetDriverVersion": "580.95.05",
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetNumGpuCores": 16896,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetTemperatureThreshold": 87,
            "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=97),
            # Bit 31 is none that this harness knows: it must not break the reading.
            "nvmlDeviceGetCurrentClocksEventReasons": 0x80000004,
            "nvmlDeviceGetPowerUsage": 412_345,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetComputeRunningProcesses": [types.SimpleNamespace(pid=12, usedGpuMemory=None)],
            "nvmlDeviceGetClockInfo": 1755,
            "nvmlDeviceGetApplicationsClock": 1980,
            "nvmlDeviceGetTemperature": 51,
        }

        def call(*_arguments):
            if name not in answers:
                raise self.NVMLError("Not Supported")
            return answers[name]

        return call


def test_nvml_is_read_with_its_units(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    reader = gpu.open_gpu()
    assert reader.gpu.text == (
        "NVIDIA H200 (140 GiB, 16896 cores, SM up to 1980 MHz, memory 1980 MHz, ECC on, MIG off, driver 580.95.05)"
    )
    assert reader.state() == GpuState(1755, 1755, 1980, 1980, 97, Reason.POWER_CAP, 51, 412.345, 700.0, None, {12: 0})
    assert devices.device_fingerprint(Device.CUDA, types.SimpleNamespace(fingerprint="a CPU")) == f"{reader.gpu.text}, a CPU"


def test_no_driver_is_an_error_that_says_where_to_look(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(driver=False))
    with pytest.raises(ProbeError, match=r"NVML Shared Library Not Found.*nvidia-smi"):
        gpu.open_gpu(0)
