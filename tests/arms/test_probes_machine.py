"""The readers behind the probes, on this machine and on files made to mislead them."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from numpy._core._multiarray_umath import __cpu_features__

from harness.arms import probes
from harness.arms.probes import ProbeState, cpu_probes, read_machine, require
from harness.errors import ProbeError

ROOT = Path(__file__).resolve().parents[2]
HAS_LIBNUMA = "import pathlib; from harness.arms.probes import read_machine; print(read_machine(pathlib.Path('/')).has_libnuma)"
REFUSED = """
from pathlib import Path
from harness.arms.probes import cpu_probes, read_machine, require
from harness.errors import ProbeError
try:
    require(cpu_probes(read_machine(Path("/"))), "vllm-0.24.0 on a CPU")
except ProbeError as error:
    print(error)
"""


def has_libnuma(folder: Path) -> bool:
    """What a fresh process says that looks for libraries in this folder first."""
    done = subprocess.run(
        (sys.executable, "-c", HAS_LIBNUMA),
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.strip() == "True"


def some_library() -> Path:
    """A harmless library that NumPy has loaded into this process."""
    return Path(re.findall(r"/\S+/libm\.so[\w.]*", Path("/proc/self/maps").read_text())[0])


def probe(name: str, **facts: object):
    machine = read_machine(Path("/"))
    changed = SimpleNamespace(**{field: getattr(machine, field) for field in machine.__slots__} | facts)
    return next(one for one in cpu_probes(changed) if one.name == name)


def test_avx2_of_this_machine_is_what_numpy_found_by_asking_the_cpu(tmp_path):
    if platform.machine() != "x86_64":
        pytest.skip("no x86-64 CPU")
    assert ("avx2" in read_machine(tmp_path).cpu_flags) == __cpu_features__["AVX2"]


def test_libnuma_of_this_machine_is_loaded_when_it_is_said_to_be_there(tmp_path):
    there = read_machine(tmp_path).has_libnuma
    assert there == ("libnuma.so" in Path("/proc/self/maps").read_text())


def test_a_library_in_a_folder_that_only_the_loader_knows_is_found(tmp_path):
    shutil.copy(some_library(), tmp_path / "libnuma.so.1")
    assert has_libnuma(tmp_path)


def test_a_libnuma_that_cannot_be_loaded_is_none_even_where_another_is_installed(tmp_path):
    (tmp_path / "libnuma.so.1").write_text("this is no library, however often it is read. " * 20)
    assert not has_libnuma(tmp_path)


CPUINFO = """processor\t: 0
model name\t: A CPU with AVX2 in its name, avx2
flags\t\t: {flags}
bugs\t\t: avx2

processor\t: 1
flags\t\t: fpu avx2
"""


@pytest.mark.parametrize(
    ("flags", "state"),
    [
        ("fpu sse2 avx avx2 bmi2", ProbeState.OK),
        ("avx2", ProbeState.OK),
        ("fpu sse2 avx avx2000 not_avx2", ProbeState.FAIL),
        ("", ProbeState.FAIL),
    ],
)
def test_avx2_is_a_flag_of_the_first_cpu_and_a_whole_word(tmp_path, flags, state):
    file = tmp_path / "cpuinfo"
    file.write_text(CPUINFO.format(flags=flags))
    assert probe("AVX2", cpu_flags=probes._cpu_flags(file)).state is state


@pytest.mark.parametrize(
    "content", [None, b"", b"Features\t: fp asimd\n", b"\xff\xfe\n"], ids=["none", "empty", "arm", "bytes"]
)
def test_a_system_that_does_not_tell_its_flags_has_none(tmp_path, content):
    file = tmp_path / "cpuinfo"
    if content is not None:
        file.write_bytes(content)
    assert probes._cpu_flags(file) == frozenset()
    assert probe("AVX2", cpu_flags=frozenset()).state is ProbeState.FAIL


@pytest.mark.parametrize(("version", "state"), [((3, 11), "ok"), ((3, 12), "ok"), ((3, 13), "fail"), ((3, 14), "fail")])
def test_the_interpreter_that_runs_decides(tmp_path, monkeypatch, version, state):
    monkeypatch.setattr(probes, "sys", SimpleNamespace(version_info=(*version, 1, "final", 0)))
    found = {one.name: one for one in cpu_probes(read_machine(tmp_path))}["Python"]
    assert (found.state, found.found) == (state, ".".join(map(str, version)))


def test_python_3_13_is_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(probes, "sys", SimpleNamespace(version_info=(3, 13, 0, "final", 0)))
    with pytest.raises(
        ProbeError, match=r"nothing was downloaded:\n(.*\n)*  Python: 3\.13\n    -> .*Python 3\.11 or 3\.12: .*nox"
    ):
        require(cpu_probes(read_machine(tmp_path)), "vllm-0.24.0 on a CPU")


def python_3_13() -> Path | None:
    """A real one, wherever it is."""
    named = [Path(one) for one in (shutil.which("python3.13"),) if one]
    named += sorted(Path.home().glob(".pyenv/versions/3.13*/bin/python3.13"))
    for one in named:
        if subprocess.run((one, "-c", ""), check=False, stderr=subprocess.DEVNULL).returncode == 0:
            return one
    return None


def test_a_real_python_3_13_is_refused():
    python = python_3_13()
    if python is None:
        pytest.skip("there is no Python 3.13 here")
    done = subprocess.run((python, "-c", REFUSED), cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    assert "this machine cannot run vllm-0.24.0 on a CPU; nothing was downloaded" in done.stdout
    assert "Python: 3.13" in done.stdout
    assert "need Python 3.11 or 3.12" in done.stdout
