"""Programs: git and compilers that everything needs, and what only GPU work needs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from harness.arms.probes import Probe, ProbeState
from harness.git import GIT_NEEDED, git_remedy, git_version

__all__ = ["Runner", "find_nsys", "run_tool", "tool_probes"]

# Runs a command; its output, or None when it is not there, fails or hangs.
Runner = Callable[[Sequence[str]], str | None]

TIMEOUT_S = 10.0
# nsys comes by itself, with the CUDA toolkit, and inside Nsight Compute, which puts no link on PATH.
NSYS_PLACES = (
    "opt/nvidia/nsight-systems/*/bin/nsys",
    "opt/nvidia/nsight-systems/*/target-linux-x64/nsys",
    "opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys",
    "usr/local/cuda*/bin/nsys",
    "usr/local/cuda*/nsight-systems*/bin/nsys",
    "usr/local/cuda*/nsight-compute*/host/target-linux-x64/nsys",
)


def run_tool(command: Sequence[str]) -> str | None:
    """The default Runner."""
    try:
        result = subprocess.run(
            list(command), capture_output=True, text=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def tool_probes(run: Runner = run_tool, root: Path = Path("/")) -> tuple[Probe, ...]:
    """git, gcc, g++ (required), nvcc, GPU, nsys (optional). `root` is where nsys is looked for, for tests."""
    return (_git(run), *(_compiler(run, one) for one in ("gcc", "g++")), _nvcc(run), _gpu(run), _nsys(run, root))


def _git(run: Runner) -> Probe:
    said = run(["git", "--version"])
    if said is None:
        return Probe("git", ProbeState.FAIL, "not found", git_remedy())
    version, enough = git_version(said)
    if not enough:
        return Probe("git", ProbeState.FAIL, f"{version}, {'.'.join(map(str, GIT_NEEDED))} needed", git_remedy())
    return Probe("git", ProbeState.OK, version)


def _compiler(run: Runner, name: str) -> Probe:
    said = run([name, "-dumpfullversion"])
    if said is None:
        remedy = "vLLM compiles its CPU kernels when it starts: apt install build-essential (Debian, Ubuntu)"
        return Probe(name, ProbeState.FAIL, "not found", remedy)
    return Probe(name, ProbeState.OK, said)


def _nvcc(run: Runner) -> Probe:
    said = run(["nvcc", "--version"]) or run(["/usr/local/cuda/bin/nvcc", "--version"])
    if said is None:
        remedy = "only CUDA kernels need it: install the CUDA 13.0 toolkit, with its bin folder on PATH"
        return Probe("nvcc", ProbeState.ABSENT, "not found", remedy)
    match = re.search(r"release (\S+?),", said)
    return Probe("nvcc", ProbeState.OK, match[1] if match else said.splitlines()[-1])


def _gpu(run: Runner) -> Probe:
    said = run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"])
    if not said:
        return Probe(
            "GPU", ProbeState.ABSENT, "no NVIDIA GPU or driver", "only GPU work needs one: benchmarks here use the CPU"
        )
    gpus = said.splitlines()
    name, driver, memory = (part.strip() for part in [*gpus[0].split(","), "?", "?"][:3])
    return Probe("GPU", ProbeState.OK, f"{len(gpus)} x {name} ({memory}), driver {driver}")


def find_nsys(run: Runner = run_tool, root: Path = Path("/")) -> tuple[str, str] | None:
    """The nsys to use and its version: the one on PATH, else the newest that a toolkit put elsewhere."""
    return _first(run, _candidates(root))


def _candidates(root: Path) -> list[str]:
    on_path = shutil.which("nsys")
    return ([on_path] if on_path else []) + sorted(
        {str(one) for place in NSYS_PLACES for one in root.glob(place)}, reverse=True
    )


def _first(run: Runner, candidates: Iterable[str]) -> tuple[str, str] | None:
    for one in candidates:
        match = re.search(r"\d+(\.\d+)+\S*", run([one, "--version"]) or "")
        if match:
            return one, match[0]
    return None


def _nsys(run: Runner, root: Path) -> Probe:
    found = find_nsys(run, root)
    if found is None:
        remedy = "only GPU profiles need it: install Nsight Systems (it also comes with the CUDA toolkit and Nsight Compute)"
        return Probe("nsys", ProbeState.ABSENT, "not found, also not in a CUDA toolkit or Nsight Compute", remedy)
    return Probe("nsys", ProbeState.OK, f"{found[1]} ({found[0]})")
