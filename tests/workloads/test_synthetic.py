"""Synthetic models: made once, complete or not at all, with a tokenizer that gives back the ids it was given."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from harness.errors import WorkloadError
from harness.paths import Paths
from harness.workloads import synthetic
from harness.workloads.synthetic import list_models, make_model, read_model

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = {"config.json", "generation_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"}
ROUND_TRIPS = 50
PROMPT = 200


@pytest.fixture
def paths(tmp_path):
    """A checkout with the real models and nothing else."""
    shutil.copytree(REPOSITORY / "workloads" / "models", tmp_path / "workloads" / "models")
    return Paths.of(root=tmp_path, state=tmp_path / "state")


@pytest.fixture
def edit(paths):
    def change(old: str, new: str) -> None:
        file = paths.workloads / "models" / "tiny-llama.toml"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return change


def test_config_is_that_of_the_file(paths):
    config = json.loads((make_model(paths, "llama-3.1-8b") / "config.json").read_text())
    assert config["hidden_size"] == 4096
    assert config["num_hidden_layers"] == 32
    assert config["rope_scaling"]["rope_type"] == "llama3"
    # Llama 3.1 8B's published number of parameters, from the geometry alone.
    h, i, v, layers, kv = 4096, config["intermediate_size"], config["vocab_size"], config["num_hidden_layers"], 8 * 128
    assert 2 * v * h + layers * (2 * h * h + 2 * h * kv + 3 * h * i + 2 * h) + h == 8_030_261_248


def test_qwen3_geometry_gives_its_published_parameters(paths):
    config = read_model(paths, "qwen3-8b").config
    h, i, v, layers, q, kv = 4096, config["intermediate_size"], config["vocab_size"], config["num_hidden_layers"], 4096, 8 * 128
    assert 2 * v * h + layers * (2 * h * q + 2 * h * kv + 3 * h * i + 2 * h + 2 * config["head_dim"]) + h == 8_190_735_360


@pytest.mark.parametrize("name", ["tiny-llama", "llama-3.1-8b"])
def test_decoded_prompts_encode_to_the_same_ids(paths, name):
    folder = make_model(paths, name)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    assert tokenizer.get_vocab_size() == vocabulary
    rng = random.Random(0)
    for _ in range(ROUND_TRIPS):
        # 0 to 2 are special and vLLM's random dataset draws none of them.
        ids = [rng.randrange(3, vocabulary) for _ in range(PROMPT)]
        assert tokenizer.encode(tokenizer.decode(ids)).ids == ids


def test_a_word_that_begins_like_a_special_token_stays_whole(paths):
    tokenizer = Tokenizer.from_file(str(make_model(paths, "tiny-llama") / "tokenizer.json"))
    assert tokenizer.encode("w1234 w31999 w3").ids == [1234, 31999, 3]
    assert tokenizer.encode("<s> w7 </s>").ids == [1, 7, 2]


def test_no_special_token_is_added_to_a_prompt(paths):
    tokenizer = Tokenizer.from_file(str(make_model(paths, "tiny-llama") / "tokenizer.json"))
    assert tokenizer.num_special_tokens_to_add(is_pair=False) == 0


def test_the_same_description_is_made_once(paths):
    first = make_model(paths, "tiny-llama")
    stamp = (first / "config.json").stat().st_mtime_ns
    assert make_model(paths, "tiny-llama") == first
    assert (first / "config.json").stat().st_mtime_ns == stamp


def test_another_description_gets_another_folder(paths, edit):
    first = make_model(paths, "tiny-llama")
    edit("num_hidden_layers = 4", "num_hidden_layers = 5")
    second = make_model(paths, "tiny-llama")
    assert second != first
    assert json.loads((first / "config.json").read_text())["num_hidden_layers"] == 4
    assert json.loads((second / "config.json").read_text())["num_hidden_layers"] == 5


def test_a_failure_while_making_leaves_nothing(paths, monkeypatch):
    written = []

    def full(path: Path, text: str) -> None:
        written.append(path.name)
        if len(written) == 3:
            raise OSError(28, "No space left on device", str(path))
        path.write_text(text)

    with monkeypatch.context() as patch:
        patch.setattr(synthetic, "write_durably", full)
        with pytest.raises(OSError, match="No space left"):
            make_model(paths, "tiny-llama")
    assert list(paths.models.iterdir()) == []
    assert {one.name for one in make_model(paths, "tiny-llama").iterdir()} == FILES


def test_another_process_that_was_faster_wins(paths, monkeypatch):
    real = synthetic._write_files

    def slow(folder: Path, model: synthetic.SyntheticModel) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(synthetic, "_write_files", real)
            winner.append(make_model(paths, model.name))
        real(folder, model)

    winner: list[Path] = []
    monkeypatch.setattr(synthetic, "_write_files", slow)
    assert [make_model(paths, "tiny-llama")] == winner
    assert list(paths.models.iterdir()) == winner


def test_an_unknown_model_is_answered_with_the_nearest(paths):
    with pytest.raises(WorkloadError, match=r"no synthetic model 'tiny-lama'.*Did you mean 'tiny-llama'"):
        make_model(paths, "tiny-lama")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 2", "field 'schema' is 2, this checkout reads 1"),
        ("schema = 1", "", "field 'schema' is missing"),
        ("hidden_size = 256\n", "", "field 'config.hidden_size' is missing"),
        ("hidden_size = 256", 'hidden_size = "big"', "field 'config.hidden_size' is malformed: got 'big'"),
        ("hidden_size = 256", "hidden_size = 0", "field 'config.hidden_size' is malformed: got 0"),
        ("vocab_size = 32000", "vocab_size = 512", "field 'config.vocab_size' is malformed: got 512.*at least 10000"),
        ("eos_token_id = 2", "eos_token_id = 7", "field 'config.eos_token_id' is malformed: got 7.*</s>"),
        ("[config]", "[configuration]", "field 'config' is missing"),
        ("schema = 1", "schema = 1\nwhay = 3", "unknown field 'whay'.*Did you mean 'why'"),
        ("[config]", "[config", "is not valid TOML.*line"),
    ],
)
def test_a_wrong_description_names_the_field(paths, edit, old, new, message):
    edit(old, new)
    with pytest.raises(WorkloadError, match=message):
        make_model(paths, "tiny-llama")
    assert not paths.models.exists()


def test_every_model_of_the_checkout_can_be_read(paths):
    assert set(list_models(paths)) == {"llama-3.1-8b", "qwen3-8b", "tiny-llama"}
    for name in list_models(paths):
        assert read_model(paths, name).why
