"""What each command does on a machine without git, or with an old one: its work where that needs none, else one clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SERIES = "vllm/penalties-bin-counts"


@pytest.fixture
def types(tmp_path):
    """Run a command with nothing on the PATH but what is in `programs`."""
    (tmp_path / "programs").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
        "PATH": str(tmp_path / "programs"),
        "UPKERNEL_STATE": str(tmp_path / "state"),
        "PIP_NO_INDEX": "1",  # doctor asks the index
    }

    def run(*words):
        command = [sys.executable, "-m", "harness", *words]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize("words", [["--help"], ["bench_vllm", "--help"], ["clean"], ["bench_vllm", "--dry-run"]])
def test_what_needs_no_git_works_without(types, words):
    done = types(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_doctor_names_git_and_the_remedy(types):
    done = types("doctor")
    assert done.returncode == 1
    assert done.stderr == ""
    lines = [line.split() for line in done.stdout.splitlines()]
    git = next(number for number, words in enumerate(lines) if words[1:2] == ["git"])
    assert lines[git] == ["fail", "git", "not", "found"]
    assert "install git 2.38 or newer" in done.stdout.splitlines()[git + 1]


@pytest.mark.parametrize("words", [["apply", SERIES], ["arms", "base", SERIES], ["bench_vllm"], ["check", "--apply"]])
def test_what_needs_git_says_so_in_one_error_and_downloads_nothing(types, tmp_path, words):
    done = types(*words)
    assert done.returncode == 1
    assert "git is not on the PATH: install git 2.38 or newer" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    state = tmp_path / "state"
    assert not [file for folder in ("archives", "environments") for file in (state / folder).rglob("*")]


def test_an_old_git_is_named_with_the_one_that_is_needed(types, tmp_path):
    git = tmp_path / "programs" / "git"
    git.write_text("#!/bin/sh\necho git version 2.37.9\n")
    git.chmod(0o755)
    done = types("apply", SERIES)
    assert done.returncode == 1
    assert done.stderr == "error: git 2.37.9 is too old: install git 2.38 or newer (Debian, Ubuntu: apt install git)\n"


def test_a_git_that_cannot_be_run_is_not_a_traceback(types, tmp_path):
    git = tmp_path / "programs" / "git"
    git.write_text("#!/bin/sh\nexit 3\n")
    git.chmod(0o755)
    done = types("apply", SERIES)
    assert done.returncode == 1
    assert done.stderr.startswith("error: git cannot be run (")
    assert "Traceback" not in done.stderr
