"""What a machine must have before anything is downloaded for it: facts read once, then judged by pure functions."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harness.errors import ProbeError

__all__ = ["Machine", "Probe", "ProbeState", "cpu_probes", "cuda_probes", "read_machine", "require"]

GIGABYTE = 10**9
# The CPU environment takes 4.9 GB, pip's cache and temporary files about 4 GB more, vLLM's repository and trees 1 GB.
DISK_NEEDED = 12 * GIGABYTE
# torch for CUDA and NVIDIA's libraries take 8 GB installed, the engine's wheel twice its size, pip's cache as much again.
CUDA_DISK_NEEDED = 25 * GIGABYTE
KIT_DISK_NEEDED = 4 * GIGABYTE
PYTHONS = ((3, 11), (3, 12))


class ProbeState(StrEnum):
    """fail: needed work cannot be done. warn: it can, but worse. absent: an optional thing is not here."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing looked at: what was found, and what to do when it does not do ("" when there is nothing to do)."""

    name: str
    state: ProbeState
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that the probes judge; tests make their own."""

    system: str
    architecture: str
    python: tuple[int, int]
    # Flags of the first CPU, empty where the system does not tell.
    cpu_flags: frozenset[str]
    has_libnuma: bool
    has_ensurepip: bool
    # Free bytes where the environment would lie.
    disk_free: int


def read_machine(folder: Path) -> Machine:
    """The facts of this machine; disk space is that of `folder`, which need not exist yet."""
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        python=sys.version_info[:2],
        cpu_flags=_cpu_flags(Path("/proc/cpuinfo")),
        has_libnuma=_loads("libnuma.so.1"),
        has_ensurepip=importlib.util.find_spec("ensurepip") is not None,
        disk_free=shutil.disk_usage(_existing(folder)).free,
    )


def cpu_probes(machine: Machine) -> tuple[Probe, ...]:
    """What vLLM's CPU binaries and their dependencies need."""
    return (
        *_python_probes(machine),
        _venv_probe(machine),
        _probe(
            "libnuma",
            "libnuma.so.1 found" if machine.has_libnuma else "libnuma.so.1 cannot be loaded",
            "vLLM's CPU binaries need it: apt install libnuma1 (Debian, Ubuntu) or dnf install numactl-libs (Fedora)",
            ok=machine.has_libnuma,
        ),
        _probe(
            "AVX2",
            "the CPU has AVX2" if "avx2" in machine.cpu_flags else "the CPU does not report AVX2",
            "vLLM's CPU binaries need it: use an x86-64 CPU of 2013 or newer; in a virtual machine pass the host's CPU through",
            ok="avx2" in machine.cpu_flags,
        ),
        disk_probe(machine.disk_free),
    )


def cuda_probes(machine: Machine, *, kit: bool) -> tuple[Probe, ...]:
    """What an environment for a GPU needs, made by pip or of an unpacked kit (which needs neither pip nor much space)."""
    if kit:
        return (*_python_probes(machine), disk_probe(machine.disk_free, KIT_DISK_NEEDED))
    return (*_python_probes(machine), _venv_probe(machine), disk_probe(machine.disk_free, CUDA_DISK_NEEDED))


def _python_probes(machine: Machine) -> tuple[Probe, ...]:
    return (
        _probe(
            "platform",
            f"{machine.system} {machine.architecture}",
            "the engines' binaries are for x86_64 Linux: use such a machine, or a container or virtual machine of that kind",
            ok=(machine.system, machine.architecture) == ("Linux", "x86_64"),
        ),
        _probe(
            "Python",
            ".".join(map(str, machine.python)),
            "torch 2.11.0 and the pinned engines need Python 3.11 or 3.12: install one and run nox with it "
            "(`python3.12 -m pip install nox`, then `python3.12 -m nox ...`)",
            ok=machine.python in PYTHONS,
        ),
    )


def _venv_probe(machine: Machine) -> Probe:
    return _probe(
        "venv",
        "ensurepip found" if machine.has_ensurepip else "Python has no ensurepip",
        "install the package that completes Python's venv (Debian, Ubuntu: apt install "
        f"python{'.'.join(map(str, machine.python))}-venv)",
        ok=machine.has_ensurepip,
    )


def disk_probe(free: int, needed: int = DISK_NEEDED) -> Probe:
    """Whether `free` bytes are enough for an environment (default: for a CPU), its downloads and the trees."""
    return _probe(
        "disk",
        f"{free / GIGABYTE:.1f} GB free, {needed / GIGABYTE:.0f} GB needed",
        "free some space (`nox -s clean` lists what is ours), or put the state folder elsewhere with UPKERNEL_STATE=DIR",
        ok=free >= needed,
    )


def require(probes: Iterable[Probe], purpose: str) -> None:
    """Raise one ProbeError that lists every failing probe with its remedy."""
    failing = [one for one in probes if one.state is ProbeState.FAIL]
    if failing:
        lines = "".join(f"\n  {one.name}: {one.found}\n    -> {one.remedy}" for one in failing)
        raise ProbeError(f"this machine cannot run {purpose}; nothing was downloaded:{lines}")


def _probe(name: str, found: str, remedy: str, *, ok: bool) -> Probe:
    return Probe(name, ProbeState.OK, found) if ok else Probe(name, ProbeState.FAIL, found, remedy)


def _cpu_flags(cpuinfo: Path) -> frozenset[str]:
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return frozenset(flags.split())


def _loads(library: str) -> bool:
    """Asking the loader is the only answer that counts: ldconfig may be missing, and does not know LD_LIBRARY_PATH."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
