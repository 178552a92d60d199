"""A whole kit: what lies in it, that parts keep their size, that it is the same twice, that a second run reuses the first."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from bundle_fakes import PYTHON, kit_of, make_paths, make_wheel, two_engines

from harness.bundle import resolve, units
from harness.bundle.kit import Request, make_kit
from harness.bundle.target import Target
from harness.cli import main
from harness.errors import ArchiveError, BundleError, PinError, UsageError
from harness.progress import Progress


def members(part: Path) -> dict[str, int]:
    with tarfile.open(part) as archive:
        return {member.name: member.size for member in archive}


def test_parts_keep_their_size_and_the_description_names_their_content(tmp_path: Path):
    paths = make_paths(tmp_path)
    kit = kit_of(two_engines(paths), paths, tmp_path / "kit")
    assert len(kit.parts) == 3  # 90,000 bytes of noise in parts of 60,000
    assert all(path.stat().st_size <= 60_000 for path in kit.parts)
    written = json.loads((tmp_path / "kit" / "kit.json").read_text())
    for path in kit.parts:
        assert written["sha256"][path.name] == hashlib.sha256(path.read_bytes()).hexdigest()
    engines = written["engines"]
    assert engines["vllm"]["distributions"] == ["guide-1.7", "shared-1.0", "vllm-0.24.0"]
    assert engines["sglang"]["distributions"] == ["guide-0.7", "sglang-0.5.14", "shared-1.0"]
    assert (tmp_path / "kit" / "unpack.py").exists()


def test_a_distribution_that_two_engines_need_is_stored_once(tmp_path: Path):
    paths = make_paths(tmp_path)
    kit = kit_of(two_engines(paths), paths, tmp_path / "kit")
    stored = [name for part in kit.parts for name in members(part) if name.endswith("shared/__init__.py")]
    assert stored == ["dists/shared-1.0/lib/shared/__init__.py"]


def test_what_the_gpu_cannot_use_stays_behind_and_is_counted(tmp_path: Path):
    paths = make_paths(tmp_path)
    kit = kit_of(two_engines(paths), paths, tmp_path / "kit")
    names = [name for part in kit.parts for name in members(part)]
    assert not [name for name in names if "_fa2_" in name or name.endswith(".a")]
    assert kit.left == {"FlashAttention 2: a Hopper GPU runs 3": 70_000, "static libraries": 60_000}


def test_parts_are_readable_with_tar(tmp_path: Path):
    paths = make_paths(tmp_path)
    kit = kit_of(two_engines(paths), paths, tmp_path / "kit")
    for part in kit.parts:
        subprocess.run(["tar", "-xJf", part, "-C", tmp_path], check=True)
    assert (tmp_path / "dists/shared-1.0/lib/shared/__init__.py").read_bytes() == b"VALUE = 41\n"


def test_the_same_content_gives_the_same_bytes(tmp_path: Path):
    paths = make_paths(tmp_path)
    pins = two_engines(paths)
    first, second = kit_of(pins, paths, tmp_path / "a"), kit_of(pins, paths, tmp_path / "b")
    assert [path.read_bytes() for path in first.parts] == [path.read_bytes() for path in second.parts]


def test_a_second_run_compresses_only_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = make_paths(tmp_path)
    compressed = []
    real = units.compress
    monkeypatch.setattr(units, "compress", lambda raw: compressed.append(len(raw)) or real(raw))
    kit_of(two_engines(paths), paths, tmp_path / "kit")
    all_of_it = len(compressed)
    assert all_of_it > 8
    kit_of(two_engines(paths), paths, tmp_path / "kit")
    again = compressed[all_of_it:]
    assert len(again) == 3  # the three parts' descriptions
    (paths.archives / "vllm-0.24.0-py3-none-any.whl").unlink()
    kit_of(two_engines(paths, seed=7), paths, tmp_path / "kit")
    assert 3 < len(compressed) - all_of_it - len(again) < all_of_it


def test_parts_of_an_older_larger_kit_are_removed(tmp_path: Path):
    paths = make_paths(tmp_path)
    pins = two_engines(paths)
    assert len(kit_of(pins, paths, tmp_path / "kit").parts) == 3
    assert len(kit_of(pins[1:], paths, tmp_path / "kit").parts) == 1
    assert [path.name for path in (tmp_path / "kit").glob("part-*")] == ["part-1.tar.xz"]


def test_sources_and_test_needs_are_asked_for(tmp_path: Path):
    paths = make_paths(tmp_path)
    kit = kit_of(two_engines(paths), paths, tmp_path / "kit", with_sources=True, with_tests=True)
    names = {name for part in kit.parts for name in members(part)}
    assert {"archives/vllm-0.24.0.tar.gz", "archives/sglang-0.5.14.tar.gz"} <= names
    assert "tblib-3.2.2" in kit.description["engines"]["vllm"]["tests"]
    assert "tblib-3.2.2" not in kit.description["engines"]["vllm"]["distributions"]


def test_too_small_parts_are_refused_before_any_work(tmp_path: Path):
    paths = make_paths(tmp_path)
    with pytest.raises(UsageError, match="--part-size"):
        kit_of(two_engines(paths), paths, tmp_path / "kit", part_size=500)
    with pytest.raises(UsageError, match="--part-size is too small: one piece alone"):
        kit_of(two_engines(paths), paths, tmp_path / "kit", part_size=20_000)


def test_a_wheel_that_would_land_outside_is_refused(tmp_path: Path):
    from bundle_fakes import make_pin, make_wheel

    from harness.vocabulary import Engine

    paths = make_paths(tmp_path)
    wheel = make_wheel(paths.archives, "vllm", "0.24.0", files={"../../etc/passwd": b"x"})
    with pytest.raises(BundleError, match=r"\.\./\.\./etc/passwd.*refused"):
        kit_of((make_pin(paths, Engine.VLLM, wheel, "shared==1.0\n"),), paths, tmp_path / "kit")


def test_a_changed_wheel_of_an_engine_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = make_paths(tmp_path)
    pins = two_engines(paths)
    monkeypatch.setattr("harness.pins.index.find", lambda *_args, **_options: ())
    with (paths.archives / "vllm-0.24.0-py3-none-any.whl").open("ab") as file:
        file.write(b"changed")
    with pytest.raises((PinError, ArchiveError), match="sha256"):
        kit_of(pins, paths, tmp_path / "kit")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--part-size", "5 apples"], "--part-size"),
        (["--part-size", "1M"], "at least 18M"),
        (["--arch", "7.0"], "compute capability"),
        (["--python", "3.9"], "3.11 and 3.12"),
        (["--have", "/nowhere/have.txt"], "pip list"),
    ],
)
def test_wrong_options_are_usage_errors(
    arguments: list[str], word: str, capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("harness.bundle.kit.SMALLEST_PART", 18_000_000)
    assert main(["--state", str(tmp_path), "bundle", "--output", str(tmp_path / "kit"), *arguments]) == 2
    assert word in capsys.readouterr().err


def test_an_unknown_engine_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bundle", "--engines", "tensorrt"])
    assert stopped.value.code == 2
    assert "tensorrt" in capsys.readouterr().err


def test_the_harness_itself_runs_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = make_paths(tmp_path)
    pins = two_engines(paths)
    make_wheel(paths.archives, "gitlike", "3.0", requires=("smap>=1",), files={"gitlike.py": b"import smap\n"})
    make_wheel(paths.archives, "smap", "1.2", files={"smap.py": b"VALUE = 7\n"})
    (paths.root / "pyproject.toml").write_text('[dependency-groups]\nharness = ["gitlike==3.0", "pytest==1.0"]\n')
    (paths.requirements / "harness.txt").write_text("gitlike==3.0\nsmap==1.2\npytest==1.0\n")
    monkeypatch.setitem(resolve.ANY_VERSION, "pytest", "any does")
    target = Target(PYTHON, "9.0", {"pytest": pytest.__version__})
    request = Request(pins, target, 60_000, tmp_path / "kit", with_tests=False, with_sources=False, thin=True)
    kit = make_kit(request, paths, Progress(quiet=True))
    entry = kit.description["engines"]["harness"]
    assert entry["distributions"] == ["gitlike-3.0", "smap-1.2"]
    assert entry["host"] == {"pytest": pytest.__version__}
    into = tmp_path / "host"
    subprocess.run([sys.executable, tmp_path / "kit/unpack.py", *kit.parts, "--into", into, "--engines", "harness"], check=True)
    command = [into / "envs/harness/bin/python", "-I", "-c", "import gitlike; print(gitlike.smap.VALUE)"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "7\n"
