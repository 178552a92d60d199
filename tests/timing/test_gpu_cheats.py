"""The same on a real GPU: cheats.py through a worker process, each caught by the guard that it names."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from harness.runs.kernel_worker import KernelWorker  # noqa: E402
from harness.timing.point import Settings  # noqa: E402
from harness.timing.workfile import load_workfile  # noqa: E402

FILE = Path(__file__).with_name("cheats.py")
VARIANTS = load_workfile(FILE).variants


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_cheat_on_a_gpu_is_caught(tmp_path, variant):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONSAFEPATH": "1"}
    worker = KernelWorker(
        lambda *arguments: (sys.executable, *arguments),
        environment=environment,
        directory=tmp_path,
        file=FILE,
        device="cuda",
        variant=variant,
    )
    try:
        worker.wait_ready(120)
        settings = Settings(replays=10)
        results = {one.point: one for one in worker.measure(settings, keep_bytes=0, timeout_s=120)}
    finally:
        worker.stop()
    caught_by = VARIANTS[variant]["caught_by"]
    honest = results["rows"]
    assert honest.detail == ""
    assert (set(honest.fired) == set()) if not caught_by else (caught_by in honest.fired), dataclasses.asdict(honest)
    assert "floor" in results["claims-more"].fired
