"""The Triton kernel compiles for GPUs that this machine need not have; needs torch and triton (``nox -s kernels``)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

for name in ("torch", "triton"):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: nox -s kernels runs this test with it", allow_module_level=True)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_triton_kernel_compiles_for(target: str) -> None:
    # A process of its own: this one may hold the kernel in its interpreted form.
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    cmd = [sys.executable, "-m", "upkernel.paged_decode.triton_compile", target]
    done = subprocess.run(cmd, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    for line in lines:
        shared = int(line.split(" bytes of shared memory")[0].split()[-1])
        # What one workgroup may have: 64 KB of LDS on gfx942, 163 KB on sm_80.
        assert 0 < shared <= (65536 if target == "gfx942" else 166912), line
