"""Reads workloads/<engine>/<name>.toml."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

from harness.errors import UnknownWorkloadError, WorkloadError
from harness.fields import Fields, read_toml
from harness.names import nearest
from harness.paths import Paths
from harness.vocabulary import Device, Direction, Engine
from harness.workloads.model import EngineWorkload, Metric, Script, TokenCounts
from harness.workloads.synthetic import read_model

__all__ = ["WORKLOAD_SCHEMA", "list_workloads", "read_workload"]

WORKLOAD_SCHEMA = 1
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
NO_PREFIX_CACHING = "--no-enable-prefix-caching"


def list_workloads(paths: Paths) -> tuple[str, ...]:
    """Ids ("vllm/penalties-serve") of the engine workloads of this checkout."""
    found = (path for engine in Engine for path in (paths.workloads / engine).glob("*.toml"))
    return tuple(sorted(f"{path.parent.name}/{path.stem}" for path in found))


def read_workload(paths: Paths, workload: str, model_override: Path | str | None = None) -> EngineWorkload:
    """Read and check a workload. `model_override` is a real model's folder or the name of another synthetic model.

    Raises WorkloadError for an unknown id (with the nearest ones), a wrong field (named), or a model that is not there.
    """
    known = list_workloads(paths)
    if workload not in known:
        raise UnknownWorkloadError(f"there is no workload {workload!r} in workloads/. {nearest(workload, known)}")
    engine, _, name = workload.partition("/")
    path = paths.workloads / engine / f"{name}.toml"
    fields = Fields(str(path), read_toml(path, WorkloadError), WorkloadError)
    fields.schema(WORKLOAD_SCHEMA)
    script = fields.choice("script", Script)
    _check_script(Engine(engine), script, path)
    named = fields.text("model") if script is not Script.ROUTINE else ""
    if model_override is not None and not named:
        raise WorkloadError(f"workload {workload} calls kernels and loads no model; leave out --model")
    server_arguments = _server_arguments(fields, script, path)
    result = EngineWorkload(
        engine=Engine(engine),
        name=name,
        why=fields.text("why"),
        script=script,
        devices=fields.choices("devices", Device),
        model=named if model_override is None else _override(paths, model_override),
        server_arguments=server_arguments,
        arguments=fields.texts("arguments"),
        variables=fields.strings("variables") if fields.has("variables") else {},
        primary=_metric(fields.table("primary")),
        secondary=tuple(_metric(one) for one in fields.tables("secondary")) if fields.has("secondary") else (),
        tokens=_tokens(fields.table("tokens")) if fields.has("tokens") else None,
        warmup_runs=fields.whole("warmup_runs", least=0),
        start_timeout_s=fields.seconds("start_timeout_s"),
        run_timeout_s=fields.seconds("run_timeout_s"),
        links=fields.texts("links"),
        digest="",
    )
    fields.finish()
    _check_metrics(result, path)
    _check_caching(result, path)
    _check_runner(result, path)
    return _with_digest(paths, result, path)


def _check_script(engine: Engine, script: Script, path: Path) -> None:
    """FlashInfer has kernels and no server, the other two have no routines."""
    if (engine is Engine.FLASHINFER) is not (script is Script.ROUTINE):
        others = [one.value for one in Script if (one is Script.ROUTINE) is (engine is Engine.FLASHINFER)]
        raise WorkloadError(
            f"{path}: field 'script' is {script.value!r}, which {engine} does not have; write {' or '.join(others)}"
        )


def _check_caching(workload: EngineWorkload, path: Path) -> None:
    """A prompt found in the cache is not computed, and looks like speed (vllm#54227: 2.3 times on the same seed).

    vLLM's latency script switches the cache off itself; SGLang's is switched off in every command that we make.
    """
    where = {Script.SERVE: "server_arguments", Script.THROUGHPUT: "arguments"}.get(workload.script)
    if workload.engine is not Engine.VLLM or where is None:
        return
    given = workload.server_arguments if where == "server_arguments" else workload.arguments
    if NO_PREFIX_CACHING not in given:
        raise WorkloadError(f"{path}: field {where!r} lacks {NO_PREFIX_CACHING!r}; cached prompts would pass for speed")


def _check_runner(workload: EngineWorkload, path: Path) -> None:
    """On CUDA vLLM 0.24 has two model runners with kernels of their own and chooses by the model: a record must name one."""
    if workload.engine is Engine.VLLM and Device.CUDA in workload.devices and workload.variables.get(RUNNER) not in {"0", "1"}:
        raise WorkloadError(
            f"{path}: table 'variables' lacks {RUNNER}; write '1' (what Llama and Qwen3 take by themselves) or '0', since "
            "the two model runners run different kernels"
        )


def _server_arguments(fields: Fields, script: Script, path: Path) -> tuple[str, ...]:
    """Only the serve script talks to a server."""
    if script is Script.SERVE:
        return fields.texts("server_arguments")
    if fields.has("server_arguments"):
        raise WorkloadError(f"{path}: field 'server_arguments' has no meaning for script {script.value!r}; remove it")
    return ()


def _metric(fields: Fields) -> Metric:
    metric = Metric(key=fields.text("key"), unit=fields.text("unit"), direction=fields.choice("direction", Direction))
    fields.finish()
    return metric


def _tokens(fields: Fields) -> TokenCounts:
    counts = TokenCounts(input=fields.whole("input", least=1), output=fields.whole("output", least=1))
    fields.finish()
    return counts


def _check_metrics(workload: EngineWorkload, path: Path) -> None:
    keys = [metric.key for metric in workload.metrics]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise WorkloadError(f"{path}: metric {twice[0]!r} is listed more than once; each metric is tested once")


def _override(paths: Paths, model: Path | str) -> str:
    """An absolute path stays what it is; anything else that is not a folder must be the name of a synthetic model."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise WorkloadError(f"model folder {folder} has no config.json; give the folder that the engine would load")
        return str(folder.resolve())
    if folder.is_absolute() or "/" in str(model):
        raise WorkloadError(
            f"model folder {folder} does not exist; give a folder with config.json, or a synthetic model's name"
        )
    return read_model(paths, str(model)).name


def _with_digest(paths: Paths, workload: EngineWorkload, path: Path) -> EngineWorkload:
    hashed = hashlib.sha256(path.read_bytes())
    if not workload.model:
        return dataclasses.replace(workload, digest=hashed.hexdigest())
    if Path(workload.model).is_absolute():
        # A real model's weights may be hundreds of GB; its config and the names and sizes of its files identify it well enough.
        folder = Path(workload.model)
        hashed.update((folder / "config.json").read_bytes())
        for file in sorted(one for one in folder.rglob("*") if one.is_file()):
            hashed.update(f"{file.relative_to(folder)} {file.stat().st_size}\n".encode())
    else:
        hashed.update(read_model(paths, workload.model).digest.encode())
    return dataclasses.replace(workload, digest=hashed.hexdigest())
