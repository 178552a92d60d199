"""The command line: help that suffices, one message for an error, the promised exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import cli
from harness.errors import PinError, UsageError

ROOT = Path(__file__).resolve().parent.parent


def test_help_names_every_command_with_a_line_of_purpose(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    for command in cli.COMMANDS:
        purpose = cli._command(command).__doc__.splitlines()[0]
        assert f"{command} {purpose}" in printed


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_each_command_has_help_with_an_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert f"nox -s {command}" in printed or f"python -m harness {command}" in printed, "the help shows how it is typed"


def test_help_is_quick_because_no_command_imports_an_engine_or_torch():
    code = "import sys; from harness.cli import build_parser; build_parser(); print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "vllm", "sglang", "flashinfer", "transformers"} & set(loaded)


@pytest.mark.parametrize(("error", "code"), [(PinError("no such pin"), 1), (UsageError("no such flag"), 2)])
def test_an_error_is_one_line_and_its_exit_code(error, code, monkeypatch, capsys):
    module = cli._command("doctor")

    def fail(_args, _context):
        raise error

    monkeypatch.setattr(module, "main", fail)
    assert cli.main(["doctor"]) == code
    assert capsys.readouterr().err == f"error: {error}\n"


def test_an_interrupt_is_130_and_says_that_work_is_kept(monkeypatch, capsys):
    module = cli._command("doctor")

    def stop(_args, _context):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "main", stop)
    assert cli.main(["doctor"]) == 130
    assert "kept" in capsys.readouterr().err


def test_a_programming_error_keeps_its_traceback(monkeypatch):
    module = cli._command("doctor")

    def fail(_args, _context):
        raise ZeroDivisionError

    monkeypatch.setattr(module, "main", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["doctor"])
