"""The unpacker as a host runs it: a script alone, with real virtual environments, on good and on spoilt parts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bundle_fakes import kit_of, make_paths, two_engines

from harness.bundle.contents import KitFile
from harness.bundle.kit import Kit


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    root = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.bundle.units.UNIT_BYTES", 20_000)
        patch.setattr("harness.bundle.parts.HEADER_RESERVE", 10_000)
        patch.setattr("harness.bundle.kit.SMALLEST_PART", 1_000)
        paths = make_paths(root)
        return kit_of(two_engines(paths), paths, root / "kit", with_tests=True, with_sources=True)


@pytest.fixture
def carried(made: Kit, tmp_path: Path) -> Path:
    """The parts as they arrive on the host."""
    folder = tmp_path / "carried"
    shutil.copytree(made.parts[0].parent, folder)
    return folder


def unpack(folder: Path, into: Path, *arguments: str | Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    command = [python, "-I", folder / "unpack.py", *arguments, "--into", into]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=clean, cwd=folder)


def parts_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.tar.xz"))


def test_all_parts_at_once_give_working_environments(carried: Path, tmp_path: Path):
    result = unpack(carried, tmp_path / "k", *parts_of(carried))
    assert result.returncode == 0, result.stderr
    envs = tmp_path / "k" / "envs"
    command = subprocess.run([envs / "vllm/bin/vllm"], capture_output=True, text=True, check=True)
    assert command.stdout == "vllm 0.24.0 1.7\n"
    code = "from importlib.metadata import version as v; import sglang as s; print(v('sglang'), v('guide'), s.guide.VERSION)"
    other = subprocess.run([envs / "sglang/bin/python", "-I", "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout == "0.5.14 0.7 0.7\n"


def test_one_part_a_call_in_any_order(carried: Path, tmp_path: Path):
    parts = parts_of(carried)
    into = tmp_path / "k"
    for part in (parts[2], parts[0], *parts[3:]):
        result = unpack(carried, into, part)
        assert result.returncode == 0, result.stderr
        assert "vllm: still needs part" in result.stdout
    assert not (into / "envs" / "vllm").exists()
    missing = unpack(carried, into)
    assert missing.returncode == 1
    assert "vllm needs part 2" in missing.stderr
    assert unpack(carried, into, parts[1]).returncode == 0
    assert unpack(carried, into).returncode == 0
    assert (into / "dists/vllm-0.24.0/lib/vllm/lib.so").stat().st_size == 90_000


def test_what_is_unpacked_is_not_unpacked_again(carried: Path, tmp_path: Path):
    into = tmp_path / "k"
    unpack(carried, into, *parts_of(carried))
    python = into / "envs/vllm/pyvenv.cfg"
    before = python.stat().st_mtime_ns
    again = unpack(carried, into, *parts_of(carried))
    assert again.stdout.count("unpacked before") == len(parts_of(carried))
    assert python.stat().st_mtime_ns == before


def test_an_interrupted_part_is_unpacked_again(carried: Path, tmp_path: Path):
    into = tmp_path / "k"
    into.mkdir()
    # a half-written piece of the library and no mark for its part
    half = into / "dists/vllm-0.24.0/lib/vllm/.lib.so.unpacking"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"\x01" * 90_000)
    assert unpack(carried, into, *parts_of(carried)).returncode == 0
    assert not half.exists()


@pytest.mark.parametrize("keep", [3, 4000, -1])
def test_a_truncated_part_is_named(carried: Path, tmp_path: Path, keep: int):
    part = parts_of(carried)[1]
    part.write_bytes(part.read_bytes()[:keep])
    result = unpack(carried, tmp_path / "k", *parts_of(carried))
    assert result.returncode == 1
    assert "part-2.tar.xz" in result.stderr
    assert ("no part of a kit" if keep == 3 else "is truncated: ") in result.stderr.replace(" (part 2)", "")
    assert "Traceback" not in result.stderr


def test_a_damaged_part_is_named_and_the_call_can_be_repeated(carried: Path, tmp_path: Path):
    part = parts_of(carried)[1]
    good = part.read_bytes()
    part.write_bytes(good[:-9000] + bytes(100) + good[-8900:])
    into = tmp_path / "k"
    result = unpack(carried, into, *parts_of(carried))
    assert result.returncode == 1
    assert "part-2.tar.xz (part 2) is damaged" in result.stderr
    part.write_bytes(good)
    assert unpack(carried, into, *parts_of(carried)).returncode == 0


@pytest.mark.parametrize("path", ["dists/guide-1.7/lib/guide.py", "dists/vllm-0.24.0/lib/vllm/lib.so"])
def test_a_file_that_is_not_what_its_hash_says_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str):
    real = KitFile.sha256.fget
    monkeypatch.setattr(KitFile, "sha256", property(lambda self: "0" * 64 if self.path == path else real(self)))
    paths = make_paths(tmp_path)
    kit = kit_of(two_engines(paths), paths, tmp_path / "kit")
    result = unpack(tmp_path / "kit", tmp_path / "k", *kit.parts)
    assert result.returncode == 1
    assert f"{path} has the wrong SHA-256" in result.stderr
    assert not (tmp_path / "k" / path).exists()


def test_a_part_of_another_kit_is_named(carried: Path, tmp_path: Path):
    paths = make_paths(tmp_path)
    other = kit_of(two_engines(paths, seed=5), paths, tmp_path / "other")
    mixed = unpack(carried, tmp_path / "k", parts_of(carried)[0], other.parts[1])
    assert mixed.returncode == 1
    assert f"{other.parts[1]} is part 2 of another kit: {other.description['kit']}" in mixed.stderr
    into = tmp_path / "k2"
    assert unpack(carried, into, parts_of(carried)[0]).returncode == 0
    later = unpack(carried, into, other.parts[1])
    assert later.returncode == 1
    assert "another kit" in later.stderr


def test_something_else_is_no_part(carried: Path, tmp_path: Path):
    for content in (b"", b"hello", b"\xfd7zXZ\x00" + bytes(50)):
        wrong = carried / "wrong.tar.xz"
        wrong.write_bytes(content)
        result = unpack(carried, tmp_path / "k", wrong)
        assert result.returncode == 1
        assert "wrong.tar.xz" in result.stderr
        assert "Traceback" not in result.stderr
    gone = unpack(carried, tmp_path / "k", carried / "gone.tar.xz")
    assert "gone.tar.xz cannot be read" in gone.stderr
    nothing = unpack(carried, tmp_path / "empty")
    assert "holds no kit" in nothing.stderr


def test_engines_and_tests_are_chosen(carried: Path, tmp_path: Path):
    into = tmp_path / "k"
    assert unpack(carried, into, *parts_of(carried), "--engines", "sglang", "--with-tests").returncode == 0
    assert [path.name for path in (into / "envs").iterdir()] == ["sglang"]
    code = "import tblib; print(tblib.FROM)"
    with_tests = subprocess.run([into / "envs/sglang/bin/python", "-I", "-c", code], capture_output=True, text=True, check=True)
    assert with_tests.stdout == "kit\n"
    unknown = unpack(carried, into, "--engines", "tensorrt")
    assert unknown.returncode == 1
    assert "no tensorrt; it has" in unknown.stderr


def test_the_host_lacks_what_the_kit_counts_on(carried: Path, tmp_path: Path):
    into = tmp_path / "k"
    unpack(carried, into, *parts_of(carried))
    kit = json.loads((into / "kit.json").read_text())
    kit["engines"]["vllm"]["host"] = {"no-such-distribution": "==2.11.0", "guide": "0.1", "shared": "==3.0", "vllm": ">=99"}
    kit["engines"]["sglang"]["host"] = {}
    (into / "kit.json").write_text(json.dumps(kit))
    result = unpack(carried, into)
    assert result.returncode == 1
    assert "vllm: no-such-distribution 2.11.0 is not installed" in result.stderr
    assert "vllm: shared is 1.0, the kit was made for 3.0" in result.stderr
    assert "guide" not in result.stderr
    assert "vllm: guide is 1.7, it was 0.1 when the kit was made" in result.stdout


def test_another_python_is_refused(carried: Path, tmp_path: Path):
    into = tmp_path / "k"
    unpack(carried, into, parts_of(carried)[0])
    kit = json.loads((into / "kit.json").read_text())
    kit["python"] = "3.99"
    (into / "kit.json").write_text(json.dumps(kit))
    result = unpack(carried, into)
    assert result.returncode == 1
    assert "the kit is for Python 3.99" in result.stderr


def test_over_a_virtual_environment_its_packages_are_seen_and_the_kits_come_first(carried: Path, tmp_path: Path):
    host = tmp_path / "host"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", host], check=True)
    (packages,) = (host / "lib").glob("python*/site-packages")
    (packages / "hosted.py").write_text("FROM = 'host'\n")
    (packages / "guide.py").write_text("VERSION = 'host'\n")
    (packages / "more").mkdir()
    (packages / "more" / "nested.py").write_text("FROM = 'a path file of the host'\n")
    (packages / "more.pth").write_text("more\n")
    result = unpack(carried, tmp_path / "k", *parts_of(carried), python=str(host / "bin" / "python"))
    assert result.returncode == 0, result.stderr
    code = "import hosted, guide, nested; print(hosted.FROM, guide.VERSION, nested.FROM)"
    seen = subprocess.run([tmp_path / "k/envs/vllm/bin/python", "-I", "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout == "host 1.7 a path file of the host\n"
