"""The command line of FlashInfer's own benchmark script, as arguments for the arm's Python. Read at v0.6.12.

The script lies beside the package in the git repository (`benchmarks/`); neither the sdist nor the wheel has it.
"""

from __future__ import annotations

from pathlib import Path

from harness.errors import RunError
from harness.workloads.model import EngineWorkload

__all__ = ["RESULT_NAME", "SCRIPT", "script_command"]

# The script's CSV in the run's folder.
RESULT_NAME = "result.csv"
SCRIPT = "benchmarks/flashinfer_benchmark.py"
# The script imports `routines` from its own folder, which PYTHONSAFEPATH keeps off the path; the arm's trees stay first.
_START = (
    "import runpy, sys; script = sys.argv[1]; sys.argv = sys.argv[1:]; "
    "sys.path.append(script.rpartition('/')[0]); runpy.run_path(script, run_name='__main__')"
)


def script_command(workload: EngineWorkload, directory: Path, seed: int, tree: Path) -> tuple[str, ...]:
    """`flashinfer_benchmark.py`, writing directory/result.csv. Raises RunError when the tree does not have it."""
    script = tree / SCRIPT
    if not script.is_file():
        raise RunError(
            f"this tree has no {SCRIPT}: the script is in FlashInfer's git repository only, and this tree was made from the "
            "archive on PyPI. Give a clone with --mirror DIR, or run a kernel workload (nox -s bench_kernels -- --list)"
        )
    result = str(directory / RESULT_NAME)
    return ("-c", _START, str(script), "--random_seed", str(seed), "--output_path", result, *workload.arguments)
