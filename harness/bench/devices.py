"""The device of an experiment by name: numbers of another one say nothing about it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from harness.errors import ProbeError
from harness.experiments.machine import Machine
from harness.runs.gpu import open_gpu
from harness.vocabulary import Device

__all__ = ["AUTO", "device_fingerprint", "visible_device"]

# What --device says where the workload and this machine decide.
AUTO = "auto"
_TIMEOUT_S = 30.0
_NVIDIA = Path("/proc/driver/nvidia/version")


def visible_device() -> Device:
    """CUDA where there is an NVIDIA driver, else the CPU; asks no tool, so it is quick."""
    return Device.CUDA if _NVIDIA.exists() or shutil.which("nvidia-smi") else Device.CPU


def device_fingerprint(device: Device, machine: Machine) -> str:
    """What A/A records are kept for: the machine, and before it the GPU where one is measured.

    Raises ProbeError where there is no NVIDIA driver, or it names no GPU.
    """
    if device is Device.CPU:
        return machine.fingerprint
    try:
        return f"{open_gpu().gpu.text}, {machine.fingerprint}"
    except ProbeError:
        # Without NVML's Python package the name alone; the guards of each run say that they are absent, and why.
        return f"{_named_by_tool()}, {machine.fingerprint}"


def _named_by_tool() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise ProbeError(
            "this session measures on a GPU, and this machine has no NVIDIA driver (nvidia-smi is not there). Run it on a host "
            "with a GPU; without one, --dry-run prints the plan, and --device cpu tries a workload that allows it."
        )
    ran = subprocess.run(
        [tool, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    names = [line.strip() for line in ran.stdout.splitlines() if line.strip()]
    if ran.returncode != 0 or not names:
        raise ProbeError(f"nvidia-smi finds no GPU: {(ran.stderr or ran.stdout).strip()[:200]}. Look at it with: nvidia-smi")
    return names[0]
