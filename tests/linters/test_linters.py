"""Complaints that a series adds are told from those of the base; settings come from the tree, else from rules.toml."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.errors import EnvironmentSetupError
from harness.linters import tools
from harness.linters.run import lint_files
from harness.linters.tools import linter_environment
from harness.paths import Paths
from harness.progress import Progress
from harness.series.rules import Linter, read_rules
from harness.vocabulary import Engine

ROOT = Path(__file__).parents[2]
# Complains of each line with "bad" in it, by number; --strict: of "poor" too.
PROGRAM = f"""\
#!{sys.executable}
import sys
words = ["bad", "poor"] if "--strict" in sys.argv else ["bad"]
path = sys.argv[-1]
found = [f"{{path}}:{{n}}: {{line.strip()}}" for n, line in enumerate(open(path), 1) if any(w in line for w in words)]
print("\\n".join(found))
sys.exit(bool(found))
"""
LINTER = Linter("strictly==1.0", ("strictly", "check"), ("*.py",), "strictly.toml", ("--strict",))


@pytest.fixture
def trees(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "strictly").write_text(PROGRAM)
    (programs / "strictly").chmod(0o755)
    for name in ("base", "patched"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "strictly.toml").write_text("")
    return programs, tmp_path / "base", tmp_path / "patched"


def lint(trees, *files):
    programs, base, patched = trees
    return list(lint_files(programs, [LINTER], base, patched, files))


def test_a_complaint_that_the_base_has_is_not_the_series_even_on_another_line(trees):
    (trees[1] / "a.py").write_text("bad one\n")
    (trees[2] / "a.py").write_text("fine\nbad one\n")
    assert lint(trees, "a.py") == []
    (trees[2] / "a.py").write_text("fine\nbad one\nbad one\n")
    assert lint(trees, "a.py") == [("a.py", "strictly==1.0 check (the engine's strictly.toml):\n    a.py:3: bad one")]


def test_a_new_file_has_to_be_good_and_other_kinds_of_files_are_left_alone(trees):
    (trees[2] / "new.py").write_text("bad\n")
    (trees[2] / "new.txt").write_text("bad\n")
    (trees[1] / "gone.py").write_text("bad\n")
    assert [file for file, _ in lint(trees, "new.py", "new.txt", "gone.py")] == ["new.py"]


def test_without_the_engine_s_settings_those_of_rules_are_used_and_it_is_said(trees):
    (trees[2] / "a.py").write_text("poor\n")
    assert lint(trees, "a.py") == []
    (trees[2] / "strictly.toml").unlink()
    ((_, message),) = lint(trees, "a.py")
    assert message.startswith("strictly==1.0 check (upstream/rules.toml: this source has no strictly.toml)")


def test_a_linter_that_cannot_run_is_an_error_and_not_content(trees):
    (trees[2] / "a.py").write_text("fine\n")
    (trees[0] / "strictly").unlink()
    with pytest.raises(EnvironmentSetupError, match="cannot be run"):
        lint(trees, "a.py")


def test_an_environment_is_made_once_where_it_stays_and_again_when_it_was_not_finished(tmp_path, monkeypatch):
    paths = Paths.of(root=tmp_path, state=tmp_path / "state")
    commands = []

    def run(command):
        commands.append(command)
        if command[2] == "venv":
            (Path(command[3]) / "bin").mkdir(parents=True)
        if len(commands) == 2:
            raise EnvironmentSetupError("no route to the index")

    monkeypatch.setattr(tools, "_run", run)
    with pytest.raises(EnvironmentSetupError):
        linter_environment(paths, ["ruff==0.14.0"], Progress(quiet=True))
    programs = linter_environment(paths, ["ruff==0.14.0"], Progress(quiet=True))
    assert len(commands) == 4
    assert commands[3][-1] == "ruff==0.14.0"
    assert linter_environment(paths, ["ruff==0.14.0"], Progress(quiet=True)) == programs
    assert linter_environment(paths, ["ruff==0.14.1"], Progress(quiet=True)) != programs
    assert len(commands) == 6


def test_pip_s_own_words_are_in_the_error(tmp_path):
    with pytest.raises(EnvironmentSetupError, match=r"cannot be installed: .*boom"):
        tools._run([sys.executable, "-c", "import sys; sys.exit('boom')"])


@pytest.mark.parametrize("engine", list(Engine))
def test_every_engine_has_linters_whose_names_are_told_apart(engine):
    linters = read_rules(ROOT / "upstream/rules.toml", engine).linters
    assert any("*.py" in one.files for one in linters)
    assert any("*.cuh" in one.files for one in linters)
    assert len({(one.package, one.run) for one in linters}) == len(linters)
