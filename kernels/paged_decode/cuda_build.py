"""Compiles one specialisation of the CUDA kernel on first use and loads it through apache-tvm-ffi.

A library holds exactly one combination of dtypes, head_dim and group size (csrc/instance.cuh), which nvcc builds in a
few seconds; the cache key covers the sources, the flags and the compiler, so an edit never meets a stale binary.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["DTYPES", "Build", "BuildError", "compile_library", "find_nvcc", "load"]

CSRC = Path(__file__).resolve().parent / "csrc"
DTYPES = {"float16": 0, "bfloat16": 1, "float8_e4m3fn": 2, "float8_e5m2": 3}


class BuildError(RuntimeError):
    """nvcc is missing, or refused the sources; the message carries its output."""


@dataclass(frozen=True)
class Build:
    """One specialisation. ``warps``, ``tokens``, ``stages``, ``blocks_per_sm`` of None take the measured default."""

    q: str = "bfloat16"
    kv: str = "bfloat16"
    head_dim: int = 128
    group: int = 4  # query heads of a KV head times query tokens
    many: bool = False  # more than one query token a request
    warps: int | None = None
    tokens: int | None = None
    stages: int | None = None
    blocks_per_sm: int | None = None
    arch: str = "90a"
    # Debugging and profiling switches, for example ("-lineinfo",).
    extra: tuple[str, ...] = ()

    def macros(self) -> list[str]:
        """The -D options that select this specialisation."""
        values = {"UPK_Q": DTYPES[self.q], "UPK_KV": DTYPES[self.kv], "UPK_D": self.head_dim}
        values["UPK_NT"] = -(-self.group // 8)
        if self.many:
            values["UPK_MANY"] = 1
        for name in ("warps", "stages", "blocks_per_sm"):
            if getattr(self, name) is not None:
                values["UPK_" + {"blocks_per_sm": "BLOCKS_PER_SM"}.get(name, name.upper())] = getattr(self, name)
        if self.tokens is not None:
            values["UPK_TOK"] = self.tokens
        return [f"-D{k}={v}" for k, v in values.items()]

    def flags(self) -> list[str]:
        """All compiler flags except include paths and file names."""
        gencode = f"-gencode=arch=compute_{self.arch},code=sm_{self.arch}"
        return ["-std=c++17", "-O3", gencode, *self.extra, *self.macros()]


def find_nvcc() -> str | None:
    """Path of nvcc, from CUDA_HOME, PATH, or the usual place; None if there is none."""
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")):
        if home and (Path(home) / "bin" / "nvcc").exists():
            return str(Path(home) / "bin" / "nvcc")
    found = shutil.which("nvcc")
    if found:
        return found
    return "/usr/local/cuda/bin/nvcc" if Path("/usr/local/cuda/bin/nvcc").exists() else None


def _cache_dir() -> Path:
    base = os.environ.get("UPKERNEL_CACHE")
    return (Path(base) if base else Path.home() / ".cache" / "upkernel") / "paged_decode"


def _key(build: Build, nvcc: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(CSRC.glob("*.cu*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update("\0".join(build.flags()).encode())
    digest.update(subprocess.run([nvcc, "--version"], capture_output=True, check=True).stdout)
    return digest.hexdigest()[:20]


def compile_library(build: Build, verbose: bool = False) -> Path:
    """Returns the path of the shared library, compiling it unless the cache holds it. Safe with several processes.

    Raises BuildError with nvcc's output.
    """
    import tvm_ffi.libinfo  # noqa: PLC0415  only a machine that compiles needs it

    nvcc = find_nvcc()
    if nvcc is None:
        raise BuildError("nvcc was not found (CUDA_HOME, PATH, /usr/local/cuda)")
    folder = _cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{_key(build, nvcc)}.so"
    if target.exists():
        return target
    # One lock per specialisation: workers that start together wait for one compilation instead of repeating it.
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        lib = Path(tvm_ffi.libinfo.find_libtvm_ffi()).parent
        includes = [f"-I{p}" for p in [CSRC, *tvm_ffi.libinfo.include_paths()]]
        start = time.monotonic()
        with tempfile.TemporaryDirectory(dir=folder) as tmp:
            out = Path(tmp) / "lib.so"
            cmd = [nvcc, *build.flags(), "-Xptxas", "-v", "-Xcompiler", "-fPIC", "-shared", *includes]
            cmd += [f"-L{lib}", "-ltvm_ffi", "-o", str(out), str(CSRC / "binding.cu")]
            done = subprocess.run(cmd, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BuildError(f"{' '.join(cmd)}\n{done.stdout}{done.stderr}")
            target.with_suffix(".log").write_text(done.stderr)
            out.replace(target)
        if verbose:
            print(f"compiled {build} in {time.monotonic() - start:.1f} s")
    return target


def load(build: Build) -> Any:
    """The loaded module, with functions ``run``, ``scratch_bytes`` and ``smem_bytes``."""
    import tvm_ffi  # noqa: PLC0415

    return tvm_ffi.load_module(str(compile_library(build)))
