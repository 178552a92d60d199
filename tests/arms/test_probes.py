from __future__ import annotations

from dataclasses import replace

import pytest

from harness.arms import probes
from harness.arms.probes import GIGABYTE, Machine, ProbeState, cpu_probes, read_machine, require
from harness.errors import ProbeError

GOOD = Machine(
    system="Linux",
    architecture="x86_64",
    python=(3, 12),
    cpu_flags=frozenset({"sse2", "avx2"}),
    has_libnuma=True,
    has_ensurepip=True,
    disk_free=40 * GIGABYTE,
)


def complaint(machine):
    with pytest.raises(ProbeError) as caught:
        require(cpu_probes(machine), "vllm-0.24.0 on a CPU")
    return str(caught.value)


def test_a_good_machine_passes():
    require(cpu_probes(GOOD), "vllm-0.24.0 on a CPU")
    assert {one.state for one in cpu_probes(GOOD)} == {ProbeState.OK}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"has_libnuma": False}, "apt install libnuma1"),
        ({"cpu_flags": frozenset({"sse2"})}, "AVX2"),
        ({"python": (3, 13)}, "Python 3.11 or 3.12"),
        ({"architecture": "aarch64"}, "x86_64 Linux"),
        ({"system": "Darwin"}, "x86_64 Linux"),
        ({"has_ensurepip": False}, "python3.12-venv"),
        ({"disk_free": 11.9 * GIGABYTE}, "11.9 GB free, 12 GB needed"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_lack_is_named_with_its_remedy(change, words):
    said = complaint(replace(GOOD, **change))
    assert words in said
    assert "nothing was downloaded" in said
    assert said.count("->") == 1


def test_all_lacks_are_listed_at_once():
    said = complaint(replace(GOOD, python=(3, 13), has_libnuma=False, cpu_flags=frozenset()))
    assert said.count("->") == 3


def test_the_disk_is_that_of_a_folder_which_is_not_there_yet(tmp_path):
    assert read_machine(tmp_path / "a/b/c").disk_free > 0


def test_flags_are_those_of_the_first_cpu(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nvmx flags\t: vnmi\nflags\t\t: fpu avx2 sse4_2\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert probes._cpu_flags(cpuinfo) == {"fpu", "avx2", "sse4_2"}


@pytest.mark.parametrize("text", [None, "", "Features\t: fp asimd\n"])
def test_where_the_system_tells_no_flags_there_are_none(tmp_path, text):
    cpuinfo = tmp_path / "cpuinfo"
    if text is not None:
        cpuinfo.write_text(text)
    assert probes._cpu_flags(cpuinfo) == frozenset()


def test_a_library_is_there_when_the_loader_finds_it():
    assert probes._loads("libc.so.6")
    assert not probes._loads("libnuma.so.0.is.not.there")
