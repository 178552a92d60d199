"""Command lines of vLLM's own scripts, as arguments for the arm's Python. Checked against vLLM 0.24.0."""

from __future__ import annotations

from pathlib import Path

from harness.workloads.model import EngineWorkload, Script

__all__ = ["LOOPBACK", "MODULE", "RESULT_NAME", "script_command", "server_command"]

LOOPBACK = "127.0.0.1"
# The script's JSON in the run's folder.
RESULT_NAME = "result.json"
MODULE = "vllm.entrypoints.cli.main"
_VLLM = ("-m", MODULE)


def _model(workload: EngineWorkload, folder: Path) -> tuple[str, ...]:
    """`folder` is the made synthetic model or the real one; only a synthetic model has no weights to load."""
    real = Path(workload.model).is_absolute()
    return ("--model", str(folder)) if real else ("--model", str(folder), "--load-format", "dummy")


def server_command(workload: EngineWorkload, folder: Path, port: int) -> tuple[str, ...]:
    """`vllm serve` on loopback. The seed of the weights is fixed: both arms serve the same model."""
    _, path, *load = _model(workload, folder)
    return (
        *_VLLM,
        "serve",
        path,
        *load,
        "--host",
        LOOPBACK,
        "--port",
        str(port),
        "--seed",
        "0",
        *workload.server_arguments,
    )


def script_command(
    workload: EngineWorkload, folder: Path, directory: Path, seed: int, port: int | None = None
) -> tuple[str, ...]:
    """`vllm bench serve|latency|throughput`, writing directory/result.json.

    `seed` chooses the prompts of serve and throughput. vLLM's latency script draws its prompts from NumPy's global
    generator and `seed` reaches the engine only; its prompts decide no timing, since prefix caching is off there.
    `port` is that of the server, for serve only.
    """
    result = directory / RESULT_NAME
    if workload.script is Script.SERVE:
        if port is None:
            raise ValueError("the serve script needs the port of a server")
        return (
            *_VLLM,
            "bench",
            "serve",
            "--backend",
            "openai",
            "--model",
            str(folder),
            "--host",
            LOOPBACK,
            "--port",
            str(port),
            "--seed",
            str(seed),
            "--disable-tqdm",
            "--save-result",
            "--save-detailed",
            "--result-dir",
            str(directory),
            "--result-filename",
            RESULT_NAME,
            *workload.arguments,
        )
    return (
        *_VLLM,
        "bench",
        workload.script.value,
        *_model(workload, folder),
        "--seed",
        str(seed),
        "--output-json",
        str(result),
        *workload.arguments,
    )
