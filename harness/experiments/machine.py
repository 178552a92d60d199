"""The machine that an experiment ran on, as far as its numbers depend on it."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Machine", "read_machine"]


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    # Logical cores: those that exist, and those that this process may use.
    cores: int
    usable_cores: int
    memory_gib: float
    kernel: str
    # The interpreter that runs the harness (the arms have their own).
    python: str

    @property
    def fingerprint(self) -> str:
        """What A/A records are kept for: numbers of another CPU or core count say nothing about this one."""
        return f"{self.cpu}, {self.usable_cores} of {self.cores} cores"


def read_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> Machine:
    """Read this machine. Where /proc/cpuinfo names no model, the architecture stands in for it."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "") or platform.machine()
    cores = os.cpu_count() or 1
    return Machine(
        cpu=model,
        cores=cores,
        usable_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        kernel=platform.release(),
        python=platform.python_version(),
    )
