from __future__ import annotations

import argparse
import io

import pytest

from harness.arms.probes import GIGABYTE, Probe, ProbeState
from harness.commands import doctor
from harness.context import Context
from harness.doctor import host, report
from harness.doctor.host import cores_probe, files_probe, index_probe, loopback_probe, memory_probe
from harness.doctor.report import table
from harness.doctor.tools import find_nsys, tool_probes
from harness.paths import Paths
from harness.pins.settings import IndexSettings
from harness.progress import Progress
from harness.vocabulary import ExitCode


def probes(answers, root):
    """The probes by name, on a machine whose commands give these answers."""
    return {one.name: one for one in tool_probes(lambda command: answers.get(command[0]), root)}


@pytest.mark.parametrize(
    ("said", "state"),
    [("git version 2.38.0", "ok"), ("git version 2.37.9", "fail"), ("git version 3.0.1.windows.1", "ok"), (None, "fail")],
)
def test_git_must_be_new_enough(said, state, tmp_path):
    assert probes({"git": said}, tmp_path)["git"].state == state


def test_compilers_are_needed_and_cuda_is_not(tmp_path):
    found = probes({}, tmp_path)
    assert {name: one.state.value for name, one in found.items()} == {
        "git": "fail", "gcc": "fail", "g++": "fail", "nvcc": "absent", "GPU": "absent", "nsys": "absent",
    }  # fmt: skip
    assert all(one.remedy for one in found.values())


def test_gpu_names_count_memory_and_driver(tmp_path):
    found = probes({"nvidia-smi": "NVIDIA H200, 580.159, 143771 MiB\nNVIDIA H200, 580.159, 143771 MiB"}, tmp_path)["GPU"]
    assert found.found == "2 x NVIDIA H200 (143771 MiB), driver 580.159"


def test_nsys_is_found_where_nsight_compute_ships_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    place = tmp_path / "opt/nvidia/nsight-compute/2025.3.1/host/target-linux-x64/nsys"
    place.parent.mkdir(parents=True)
    place.touch()
    found = find_nsys(
        lambda command: "NVIDIA Nsight Systems version 2025.3.2.474" if command[0] == str(place) else None, tmp_path
    )
    assert found == (str(place), "2025.3.2.474")


def test_memory_cores_and_files_have_limits():
    assert memory_probe(9 * GIGABYTE).state is ProbeState.OK
    assert memory_probe(7 * GIGABYTE).state is ProbeState.WARN
    assert cores_probe(2).state is ProbeState.OK
    assert cores_probe(1).state is ProbeState.WARN
    assert files_probe(1024, 4096).state is ProbeState.OK
    assert files_probe(256, 1024).state is ProbeState.WARN


def test_a_port_on_loopback_is_really_opened():
    assert loopback_probe().state is ProbeState.OK
    # an address of no interface (documentation range)
    assert loopback_probe("192.0.2.1").state is ProbeState.FAIL


@pytest.mark.parametrize(("needed", "state"), [(True, ProbeState.FAIL), (False, ProbeState.WARN)])
def test_an_index_that_does_not_answer_matters_before_the_installation(needed, state):
    with host.socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    settings = IndexSettings((f"http://127.0.0.1:{port}/simple",), (), (), None, None, None, 60.0)
    found = index_probe(needed=needed, settings=settings)
    assert found.state is state
    assert "pip config list" in found.remedy


def test_table_puts_the_remedy_under_its_probe():
    text = table([Probe("git", ProbeState.OK, "2.43"), Probe("libnuma", ProbeState.FAIL, "gone", "apt install libnuma1")])
    assert text.splitlines() == ["ok      git      2.43", "fail    libnuma  gone", "                 -> apt install libnuma1"]


@pytest.mark.parametrize(
    ("state", "code"), [("ok", ExitCode.OK), ("absent", ExitCode.OK), ("warn", ExitCode.OK), ("fail", ExitCode.ERROR)]
)
def test_only_a_failure_fails(state, code, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, "examine", lambda _paths: (Probe("git", ProbeState(state), "x"),))
    context = Context(Paths.of(state=tmp_path), Progress(io.StringIO()))
    assert doctor.main(argparse.Namespace(), context) is code
    assert ("not ready: git" in capsys.readouterr().out) is (state == "fail")
