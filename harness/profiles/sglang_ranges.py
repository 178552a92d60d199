"""Run SGLang's own script with its steps marked for Nsight Systems: `python sglang_ranges.py -m sglang.bench_one_batch ...`.

Runs inside the engine's environment, so it imports nothing of the harness. Two changes, neither on the measured path of the
GPU: the step spans that SGLang 0.5.14 gives to PyTorch's profiler (`model_runner.py`, step[DECODE bs=8]) become NVTX ranges
too; and the profiler's range, which bench_one_batch closes after the prompt, stays open until the script ends.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import runpy
import sys
from collections.abc import Callable, Iterator
from typing import Any

__all__: list[str] = []


def _mark_steps() -> None:
    """Wrap profile_range before model_runner takes it by name."""
    import torch  # noqa: PLC0415

    try:
        module = importlib.import_module("sglang.srt.utils.nvtx_utils")
        original: Callable[..., Any] = module.profile_range
    except (ImportError, AttributeError) as error:
        print(f"upkernel: this SGLang has no profile_range ({error}); kernels will have no phase", file=sys.stderr)
        return

    @contextlib.contextmanager
    def marked(name: str, **options: Any) -> Iterator[None]:
        torch.cuda.nvtx.range_push(name)
        try:
            with original(name, **options):
                yield
        finally:
            torch.cuda.nvtx.range_pop()

    module.__dict__["profile_range"] = marked


def _one_range() -> None:
    """The first cudaProfilerStart counts; stops wait for the end of the script."""
    import torch  # noqa: PLC0415

    runtime = torch.cuda.cudart()
    started = False

    class OneRange:
        """Stands in for the module that torch.cuda.cudart() returns."""

        def __getattr__(self, name: str) -> Any:
            return getattr(runtime, name)

        def cudaProfilerStart(self) -> object:  # noqa: N802 - the name of CUDA's API
            nonlocal started
            if started:
                return runtime.cudaError.success
            started = True
            atexit.register(self._end)
            return runtime.cudaProfilerStart()

        def cudaProfilerStop(self) -> object:  # noqa: N802
            return runtime.cudaError.success

        def _end(self) -> None:
            torch.cuda.synchronize()
            runtime.cudaProfilerStop()

    stand_in = OneRange()
    torch.cuda.__dict__["cudart"] = lambda: stand_in


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: sglang_ranges.py -m MODULE ... | SCRIPT ...")
    _mark_steps()
    _one_range()
    if sys.argv[1] == "-m":
        module, sys.argv = sys.argv[2], sys.argv[2:]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
