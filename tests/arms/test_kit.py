"""Environments of an unpacked kit: real kits of made-up wheels, unpacked by the real unpack.py; torch is a stand-in."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys

import pytest

from harness.arms import environment as module
from harness.arms.environment import prepare_environment, with_wheel
from harness.arms.kit import KIT_VARIABLE
from harness.arms.overlay import wheel_files
from harness.arms.probes import GIGABYTE, Machine
from harness.errors import EnvironmentSetupError, ProbeError
from harness.pins.download import sha256_of
from harness.progress import Progress
from harness.vocabulary import Device, Engine
from tests.bundle.bundle_fakes import kit_of, make_paths, two_engines

MACHINE = Machine("Linux", "x86_64", (3, 12), frozenset(), has_libnuma=False, has_ensurepip=False, disk_free=5 * GIGABYTE)


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host without a network: a kit unpacked in tmp/kit, a checkout with an empty state, and what prepares environments."""
    maker = make_paths(tmp_path / "maker")
    pins = two_engines(maker)
    kit = kit_of(pins, maker, tmp_path / "parts", part_size=30_000_000, with_sources=True)
    into = tmp_path / "kit"
    subprocess.run([sys.executable, tmp_path / "parts" / "unpack.py", *kit.parts, "--into", into], check=True)
    monkeypatch.setenv(KIT_VARIABLE, str(into))
    monkeypatch.setattr(module, "check_torch", lambda *_: None)
    monkeypatch.setattr(module, "fetch_wheel", lambda *_: pytest.fail("asked the index"))
    paths = make_paths(tmp_path / "host")
    said = io.StringIO()
    return (
        pins,
        into,
        paths,
        lambda pin=pins[0], machine=MACHINE: prepare_environment(paths, pin, Device.CUDA, Progress(said), machine),
    )


def test_it_has_what_the_engine_needs_and_not_the_engine(host):
    _, into, paths, prepare = host
    made = prepare()
    code = "import shared, guide, importlib.util as u; print(shared.VALUE, guide.VERSION, u.find_spec('vllm'))"
    ran = subprocess.run([made.python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["41", "1.7", "None"]
    assert made.packages["shared"] == "1.0"
    assert made.packages["vllm"] == "0.24.0"
    assert sorted(path.name for path in paths.archives.iterdir()) == sorted(path.name for path in (into / "archives").iterdir())


def test_it_is_made_once(host):
    *_, prepare = host
    assert prepare() == prepare(machine=dataclasses.replace(MACHINE, disk_free=0))


def test_hashes_are_those_of_the_files_that_the_kit_has(host):
    _, into, _, prepare = host
    wheel = prepare().wheels[Engine.VLLM]
    files = wheel_files(wheel)
    assert any(name.endswith(".so") for name in files)
    lib = next((into / "dists").glob("vllm-*")) / "lib"
    assert files == {str(one.relative_to(lib)): sha256_of(one) for one in lib.rglob("*") if one.is_file()}


def test_another_engines_wheel_joins_it(host):
    pins, _, paths, prepare = host
    both = with_wheel(paths, prepare(), pins[1], Progress(io.StringIO()))
    assert list(both.wheels) == [pins[0].engine, pins[1].engine]
    assert wheel_files(both.wheels[pins[1].engine])
    assert with_wheel(paths, both, pins[1], Progress(io.StringIO())) is both


def test_another_kit_makes_it_again(host):
    _, into, _, prepare = host
    first = prepare()
    description = json.loads((into / "kit.json").read_text())
    (into / "kit.json").write_text(json.dumps(description | {"kit": "another"}))
    assert prepare().digest != first.digest


def test_a_pin_that_the_kit_does_not_have_is_refused(host):
    pins, _, _, prepare = host
    with pytest.raises(EnvironmentSetupError, match=r"has .*vllm 0\.24\.0, and not vllm-0\.99"):
        prepare(dataclasses.replace(pins[0], version="0.99"))


def test_an_engine_whose_parts_are_not_all_there_is_refused(host):
    _, into, _, prepare = host
    (into / "envs/vllm/complete.json").unlink()
    with pytest.raises(EnvironmentSetupError, match=r"no complete environment of vllm .*unpack.py --into"):
        prepare()


def test_a_folder_that_is_no_kit_is_refused(host, monkeypatch, tmp_path):
    *_, prepare = host
    monkeypatch.setenv(KIT_VARIABLE, str(tmp_path))
    with pytest.raises(EnvironmentSetupError, match=r"names no unpacked kit .*unpack.py part"):
        prepare()


def test_a_machine_of_another_kind_is_refused_first(host):
    *_, prepare = host
    with pytest.raises(ProbeError, match="x86_64 Linux"):
        prepare(machine=dataclasses.replace(MACHINE, architecture="aarch64"))
