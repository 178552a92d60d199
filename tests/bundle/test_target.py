"""Which wheel fits which host; lists of what a host has."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.bundle.target import Target, read_have
from harness.errors import UsageError

TARGET = Target("3.12", "9.0", {})


@pytest.mark.parametrize(
    ("filename", "fits"),
    [
        ("vllm-0.24.0-cp38-abi3-manylinux_2_28_x86_64.whl", True),
        ("sglang-0.5.14-cp312-cp312-manylinux_2_34_x86_64.whl", True),
        ("one-1.0-py3-none-any.whl", True),
        ("one-1.0-py2.py3-none-manylinux1_x86_64.whl", True),
        ("one-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", False),
        ("one-1.0-cp313-abi3-manylinux_2_28_x86_64.whl", False),
        ("one-1.0-cp312-cp312-manylinux_2_28_aarch64.whl", False),
        ("one-1.0-cp312-cp312-manylinux_2_39_x86_64.whl", False),  # a newer C library than a kit counts on
        ("one-1.0-cp312-cp312-musllinux_1_2_x86_64.whl", False),
        ("one-1.0.tar.gz", False),
    ],
)
def test_which_wheels_run(filename: str, fits: bool):
    assert (TARGET.fit(filename) is not None) is fits


def test_the_wheel_for_this_very_python_is_the_best():
    names = ("a-1-py3-none-any.whl", "a-1-cp38-abi3-manylinux_2_17_x86_64.whl", "a-1-cp312-cp312-manylinux_2_17_x86_64.whl")
    assert sorted(names, key=lambda name: TARGET.fit(name) or 0) == [names[2], names[1], names[0]]


def test_numbers_of_an_architecture():
    assert (TARGET.architecture, TARGET.major) == (90, 9)
    assert (Target("3.11", "10.0", {}).architecture, Target("3.11", "10.0", {}).major) == (100, 10)


@pytest.mark.parametrize(
    ("python", "arch", "word"), [("3.13", "9.0", "3.11 and 3.12"), ("3.12", "9.1", "'9.0'"), ("3.12", "hopper", "Known")]
)
def test_hosts_that_no_kit_can_be_for(python: str, arch: str, word: str):
    with pytest.raises(UsageError, match=word):
        Target(python, arch, {})


def test_pip_freeze_and_pip_list_are_read(tmp_path: Path):
    freeze, columns = tmp_path / "freeze", tmp_path / "list"
    freeze.write_text("# a comment\nTyping_Extensions==4.16.0\ntorch==2.11.0+cu130\nlocal @ file:///home/me/local\n")
    columns.write_text(
        "Package           Version     Editable project location\n----------------- ----------- ---\n"
        "typing.extensions 4.16.0\ntorch             2.11.0+cu130 /somewhere\n"
    )
    assert read_have(freeze) == read_have(columns) == {"typing-extensions": "4.16.0", "torch": "2.11.0+cu130"}


def test_a_list_that_is_none(tmp_path: Path):
    path = tmp_path / "have.txt"
    with pytest.raises(UsageError, match=r"cannot be read.*pip list"):
        read_have(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        read_have(path)
    path.write_text("torch==2.11.0\n{'torch': 3}\n")
    with pytest.raises(UsageError, match=r"have\.txt:2: .*NAME==VERSION"):
        read_have(path)
    path.write_text("\n")
    with pytest.raises(UsageError, match="names no package"):
        read_have(path)
