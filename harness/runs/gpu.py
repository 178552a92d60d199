"""One GPU read through NVML: what it is, and its state now. Nothing here changes a setting.

Names, units and bits are those of NVIDIA's NVML API reference (nvmlDeviceGetCurrentClocksEventReasons and others).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntFlag
from typing import Any, Protocol

from harness.errors import ProbeError

__all__ = ["Gpu", "GpuReader", "GpuState", "Reason", "chosen_index", "open_gpu"]

# What CUDA calls devices 0, 1, ... is decided by these; NVML always counts in the order of the PCI bus.
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Reason(IntFlag):
    """Why the clocks are not higher (bits of NVML's clocks event reasons)."""

    IDLE = 0x1
    SETTING = 0x2
    POWER_CAP = 0x4
    HARDWARE_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    THERMAL_SOFTWARE = 0x20
    THERMAL_HARDWARE = 0x40
    POWER_BRAKE = 0x80
    DISPLAY = 0x100


@dataclass(frozen=True, slots=True)
class Gpu:
    """What stays the same: no serial number and no UUID, which say nothing about speed and much about a host."""

    name: str
    driver: str
    memory_gib: float
    # None where the driver does not tell.
    cores: int | None
    sm_limit_mhz: int | None
    memory_limit_mhz: int | None
    slowdown_celsius: int | None
    ecc: bool | None
    mig: bool | None

    @property
    def text(self) -> str:
        """One line: "NVIDIA H200 (140 GiB, 16896 cores, SM up to 1980 MHz, memory 3201 MHz, ECC on, MIG off, driver 580)"."""
        parts = [f"{self.memory_gib:.0f} GiB"]
        parts += [f"{self.cores} cores"] if self.cores is not None else []
        parts += [f"SM up to {self.sm_limit_mhz} MHz"] if self.sm_limit_mhz is not None else []
        parts += [f"memory {self.memory_limit_mhz} MHz"] if self.memory_limit_mhz is not None else []
        parts += [f"{name} {'on' if on else 'off'}" for name, on in (("ECC", self.ecc), ("MIG", self.mig)) if on is not None]
        return f"{self.name} ({', '.join(parts)}, driver {self.driver})"


@dataclass(frozen=True, slots=True)
class GpuState:
    """What changes. None where the driver does not tell (a virtual GPU, a MIG slice)."""

    sm_mhz: int | None
    memory_mhz: int | None
    # The highest clocks that the settings allow now: another value later means that someone changed a setting.
    allowed_sm_mhz: int | None
    allowed_memory_mhz: int | None
    busy_percent: int | None
    reasons: Reason | None
    celsius: int | None
    watts: float | None
    limit_watts: float | None
    # Uncorrected memory errors since the driver was loaded.
    uncorrected: int | None
    # Bytes that each process holds, by process id; None where the driver lists none. Unknown sizes are 0.
    processes: Mapping[int, int] | None


class GpuReader(Protocol):
    """Reads one GPU."""

    gpu: Gpu

    def state(self) -> GpuState: ...


def chosen_index(environment: Mapping[str, str] | None = None) -> int | str:
    """The first device that CUDA would use: an index, or the UUID that CUDA_VISIBLE_DEVICES names.

    Raises ProbeError when the variable hides every device.
    """
    value = (os.environ if environment is None else environment).get(VISIBLE)
    if value is None:
        return 0
    first = value.split(",")[0].strip()
    if not first or first == "-1":
        raise ProbeError(f"{VISIBLE} is {value!r}, which hides every GPU. Unset it, or name the GPU to measure on.")
    return int(first) if first.isdigit() else first


class _Nvml:
    """The reader over nvidia-ml-py; every call that the device does not support gives None."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        slowdown = nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ecc = self._ask(nvml.nvmlDeviceGetEccMode, handle)
        mig = self._ask(nvml.nvmlDeviceGetMigMode, handle)
        self.gpu = Gpu(
            name=nvml.nvmlDeviceGetName(handle),
            driver=nvml.nvmlSystemGetDriverVersion(),
            memory_gib=round(memory.total / 2**30, 1),
            cores=self._ask(nvml.nvmlDeviceGetNumGpuCores, handle),
            sm_limit_mhz=self._ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
            memory_limit_mhz=self._ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_MEM),
            slowdown_celsius=self._ask(nvml.nvmlDeviceGetTemperatureThreshold, handle, slowdown),
            ecc=None if ecc is None else bool(ecc[0]),
            mig=None if mig is None else bool(mig[0]),
        )

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            # Not supported here, or not for this user: reported as absent by those who need it.
            return None

    def state(self) -> GpuState:
        nvml, handle = self._nvml, self._handle
        use = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        watts = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        limit = self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        running = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        return GpuState(
            sm_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            memory_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            allowed_sm_mhz=self._ask(nvml.nvmlDeviceGetApplicationsClock, handle, nvml.NVML_CLOCK_SM),
            allowed_memory_mhz=self._ask(nvml.nvmlDeviceGetApplicationsClock, handle, nvml.NVML_CLOCK_MEM),
            busy_percent=None if use is None else use.gpu,
            reasons=None if reasons is None else Reason(reasons & sum(Reason)),
            celsius=self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            watts=None if watts is None else watts / 1000,
            limit_watts=None if limit is None else limit / 1000,
            uncorrected=self._ask(nvml.nvmlDeviceGetTotalEccErrors, handle, kind, counter),
            processes=None if running is None else {one.pid: one.usedGpuMemory or 0 for one in running},
        )


def open_gpu(index: int | str | None = None) -> GpuReader:
    """A reader of the GPU that CUDA uses first. Raises ProbeError: no nvidia-ml-py, no driver, or no such GPU."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise ProbeError(
            "the package nvidia-ml-py is missing, so clocks, temperature and other processes of the GPU cannot be read. "
            "Install the harness's own requirements (pip install --group harness)."
        ) from error
    where = chosen_index() if index is None else index
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(where) if isinstance(where, int) else nvml.nvmlDeviceGetHandleByUUID(where)
        return _Nvml(nvml, handle)
    except nvml.NVMLError as error:
        raise ProbeError(f"NVML cannot read GPU {where}: {error}. Look at it with: nvidia-smi") from error
