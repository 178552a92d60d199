"""The environment variables of an arm: what every process of it gets, and what it must not inherit."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.arms.model import Arm, Environment
from harness.errors import ArmError
from harness.trees.model import Tree

__all__ = ["JIT_VARIABLE", "RECORD_VARIABLE", "arm_environment", "arm_variables", "inherited"]

# Folder to which every process of a run writes the engine modules that it loads (recorder/sitecustomize.py).
RECORD_VARIABLE = "UPKERNEL_MODULE_RECORD"
# FlashInfer compiles into a folder below this one.
JIT_VARIABLE = "FLASHINFER_WORKSPACE_BASE"
RECORDER = Path(__file__).resolve().parent / "recorder"
# The user's settings of these kinds would change what is measured, or which files are loaded. What a workload needs of them
# (number of threads, allocator), it sets itself.
REMOVED = (
    *("PYTHON", "VIRTUAL_ENV", "LD_PRELOAD"),
    *("VLLM_", "SGLANG_", "FLASHINFER_", "TORCH_", "TORCHINDUCTOR_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "MALLOC_"),
)


def arm_variables(folder: Path, trees: Iterable[Tree], environment: Environment, *, jit: Path) -> Mapping[str, str]:
    """The variables for trees on an environment; `folder` is the arm's own, for its caches and bytecode.

    `jit` is for what FlashInfer compiles: minutes of nvcc, so arms with the same sources share it.
    """
    search = [RECORDER, environment.prefix.parent / "identity", *(tree.import_path for tree in trees)]
    for place in search:
        if os.pathsep in str(place):
            raise ArmError(f"{place} has a {os.pathsep!r} in its name, which PYTHONPATH cannot hold; move it")
    cache = folder / "cache"
    return {
        "PYTHONPATH": os.pathsep.join(map(str, search)),
        # Keeps the working directory and a script's folder off the import path.
        "PYTHONSAFEPATH": "1",
        # Bytecode is for one content of the tree: a pyc whose source changed within a second would pass as current.
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "PYTHONNOUSERSITE": "1",
        # vLLM's client trusts http_proxy, and would send its requests to our own loopback server there.
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "PYTHONHASHSEED": "0",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # What a patch made the compiler produce must not reach the other arm.
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "XDG_CACHE_HOME": str(cache / "xdg"),
        "TVM_FFI_CACHE_DIR": str(cache / "tvm-ffi"),
        JIT_VARIABLE: str(jit),
        # vLLM reads and writes settings there.
        "VLLM_CONFIG_ROOT": str(folder / "config"),
    }


def share_bytecode(folder: Path, environment: Environment) -> None:
    """Let the arm use the environment's one cache for bytecode of installed packages and the standard library.

    PYTHONPYCACHEPREFIX moves all bytecode, so each arm would otherwise compile torch anew (20 s of CPU).
    """
    shared = environment.prefix.parent / "bytecode"
    for place in (environment.prefix, Path(sysconfig.get_path("stdlib")).resolve()):
        inside = str(place).lstrip("/")
        link = folder / "bytecode" / inside
        (shared / inside).mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            try:
                link.symlink_to(shared / inside, target_is_directory=True)
            except FileExistsError as error:
                if not link.is_symlink():
                    raise ArmError(f"{link} should be a link into {shared}; delete {folder} and run again") from error


def inherited(variables: Mapping[str, str]) -> tuple[str, ...]:
    """The names among `variables` that an arm's processes do not get."""
    return tuple(sorted(name for name in variables if name.startswith(REMOVED)))


def arm_environment(arm: Arm, extra: Mapping[str, str]) -> dict[str, str]:
    """The complete environment for a process of the arm: the user's, less what would disturb, plus the arm's and `extra`.

    `extra` is the workload's variables and, for a run, UPKERNEL_MODULE_RECORD. Raises ArmError when it would change what
    makes the arm.
    """
    clash = sorted(extra.keys() & arm.variables.keys())
    if clash:
        raise ArmError(f"{', '.join(clash)} may not be set by a workload: the arm {arm.name} sets it itself")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(REMOVED)}
    # The environment's commands come first: vLLM and torch look for ninja there.
    search = os.pathsep.join([str(arm.environment.python.parent), kept.get("PATH", os.defpath)])
    return {**kept, "PATH": search, **arm.variables, **extra}
