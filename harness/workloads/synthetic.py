"""Synthetic models: a folder with config and tokenizer, made from workloads/models/NAME.toml without any network.

The weights are the engine's own dummies (`--load-format dummy`): what is measured is time, so only the geometry matters.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from harness.errors import UnknownWorkloadError, WorkloadError
from harness.fields import Fields, read_toml
from harness.files import write_durably
from harness.names import nearest
from harness.paths import Paths

__all__ = ["MODEL_SCHEMA", "SyntheticModel", "list_models", "make_model", "model_folder", "read_model"]

MODEL_SCHEMA = 1
# Part of the folder's name: raise it when the files made from the same TOML change.
_GENERATOR = 1
# Special tokens match as substrings of a text, so none may be the beginning of an ordinary word ("w1" would split "w1234").
_SPECIAL = ("<unk>", "<s>", "</s>")
# `vllm bench latency` draws prompt ids below 10000 whatever the model.
_LEAST_VOCABULARY = 10_000
_COUNTS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


@dataclass(frozen=True, slots=True)
class SyntheticModel:
    """workloads/models/<name>.toml. `config` becomes config.json as it is."""

    name: str
    why: str
    config: dict[str, Any]
    # sha256 of the file's content and the generator's version.
    digest: str

    @property
    def vocabulary(self) -> int:
        return int(self.config["vocab_size"])


def _folder(paths: Paths) -> Path:
    return paths.workloads / "models"


def list_models(paths: Paths) -> tuple[str, ...]:
    """Names of the synthetic models of this checkout."""
    return tuple(sorted(path.stem for path in _folder(paths).glob("*.toml")))


def read_model(paths: Paths, name: str) -> SyntheticModel:
    """Read and check workloads/models/NAME.toml; raises WorkloadError that names the field."""
    known = list_models(paths)
    if name not in known:
        raise UnknownWorkloadError(f"there is no synthetic model {name!r} in workloads/models. {nearest(name, known)}")
    path = _folder(paths) / f"{name}.toml"
    fields = Fields(str(path), read_toml(path, WorkloadError), WorkloadError)
    fields.schema(MODEL_SCHEMA)
    why = fields.text("why")
    table = fields.table("config")
    fields.finish()
    _check_config(table)
    digest = hashlib.sha256(f"generator {_GENERATOR}\n".encode() + path.read_bytes()).hexdigest()
    return SyntheticModel(name=name, why=why, config=table.rest(), digest=digest)


def _check_config(table: Fields) -> None:
    """The fields that every decoder has and that the kit relies on; the others are the model's own business."""
    if not table.texts("architectures"):
        raise table.malformed("architectures", [], "a list with the model's class")
    table.text("model_type")
    table.text("dtype")
    for key in _COUNTS:
        table.whole(key, least=1)
    table.whole("vocab_size", least=_LEAST_VOCABULARY)
    for key, token in (("bos_token_id", 1), ("eos_token_id", 2)):
        if table.whole(key, least=0) != token:
            raise table.malformed(key, table.take(key, ""), f"{token}, the id of {_SPECIAL[token]!r} in our tokenizer")


def model_folder(paths: Paths, name: str) -> Path:
    """Where a workload's model is: the absolute path of a real one, or where `make_model` puts a synthetic one."""
    return Path(name) if Path(name).is_absolute() else paths.models / f"{name}-{read_model(paths, name).digest[:12]}"


def make_model(paths: Paths, name: str) -> Path:
    """The folder of the model, made now unless it is there. Its name holds the content's hash, so it never goes stale.

    A real model, given by an absolute path, is what it is.

    Two processes may make it at once: each builds its own folder, and the first rename wins.
    """
    target = model_folder(paths, name)
    if target.is_dir():
        return target
    model = read_model(paths, name)
    paths.models.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=paths.models))
    try:
        _write_files(building, model)
        building.chmod(0o755)
        try:
            building.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def _write_files(folder: Path, model: SyntheticModel) -> None:
    tokenizer = _tokenizer(model.vocabulary)
    length = int(model.config["max_position_embeddings"])
    special = dict(zip(("unk_token", "bos_token", "eos_token"), _SPECIAL, strict=True))
    # Written by hand, as transformers' PreTrainedTokenizerFast reads it, so that the harness needs no transformers.
    added = {
        str(index): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for index, text in enumerate(_SPECIAL)
    }
    files = {
        "config.json": model.config,
        "generation_config.json": {key: model.config[key] for key in ("bos_token_id", "eos_token_id")},
        "tokenizer_config.json": {
            "added_tokens_decoder": added,
            "clean_up_tokenization_spaces": False,
            "model_max_length": length,
            "tokenizer_class": "PreTrainedTokenizerFast",
            **special,
        },
        "special_tokens_map.json": special,
    }
    write_durably(folder / "tokenizer.json", tokenizer.to_str())
    for filename, content in files.items():
        write_durably(folder / filename, json.dumps(content, indent=2, sort_keys=True) + "\n")


def _tokenizer(vocabulary: int) -> Tokenizer:
    """One word per id, split at white space: encode(decode(ids)) == ids for ids that are not special."""
    words = {(_SPECIAL[index] if index < len(_SPECIAL) else f"w{index}"): index for index in range(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=_SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _SPECIAL])
    return tokenizer
