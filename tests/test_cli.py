"""The command line: help that suffices, one message for an error, the promised exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import cli, errors
from harness.errors import PinError, UsageError
from harness.vocabulary import ExitCode

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
    assert printed.startswith(f"usage: nox -s {command} -- "), "what can be typed"
    assert f"  nox -s {command}" in printed, "an example"
    # On a GPU host without a network there is no nox, but the kit's own Python.
    assert "python -m harness" not in printed.replace("kit/envs/harness/bin/python -m harness", "")


def test_help_is_quick_because_no_command_imports_anything_big():
    code = "import sys; from harness.cli import build_parser; build_parser(); print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "vllm", "sglang", "flashinfer", "transformers", "scipy", "git", "unearth"} & set(loaded)


@pytest.mark.parametrize(("error", "code"), [(PinError("no such pin"), 1), (UsageError("no such flag"), 2)])
def test_an_error_is_one_line_and_its_exit_code(error, code, monkeypatch, capsys):
    module = cli._command("doctor")

    def fail(_args, _context):
        raise error

    monkeypatch.setattr(module, "main", fail)
    assert cli.main(["doctor"]) == code
    assert capsys.readouterr().err == f"error: {error}\n"


@pytest.mark.parametrize(
    ("unknown", "part"),
    [
        (errors.UnknownPinError, errors.PinError),
        (errors.UnknownSeriesError, errors.SeriesError),
        (errors.UnknownTreeError, errors.TreeError),
        (errors.UnknownWorkloadError, errors.WorkloadError),
        (errors.UnknownExperimentError, errors.EvidenceError),
    ],
)
def test_a_name_that_does_not_exist_is_a_usage_error_of_its_part(unknown, part):
    assert unknown.exit_code == ExitCode.USAGE
    assert part.exit_code == ExitCode.ERROR
    assert issubclass(unknown, part)


@pytest.fixture
def seen(monkeypatch):
    """Run `doctor` with these words; its context and its arguments."""

    def main(*words):
        caught = []
        monkeypatch.setattr(cli._command("doctor"), "main", lambda args, context: caught.extend((args, context)) or 0)
        assert cli.main(words) == 0
        return caught

    return main


@pytest.mark.parametrize("after", [False, True])
def test_options_of_every_command_may_come_before_or_after_it(seen, tmp_path, capsys, after):
    options = ("--state", str(tmp_path), "--quiet", "--traceback")
    args, context = seen("doctor", *options) if after else seen(*options, "doctor")
    assert context.paths.state == tmp_path
    assert args.traceback is True
    context.progress.say("a step")
    assert capsys.readouterr().err == ""


def test_options_before_and_after_a_command_add_up_and_the_later_one_counts(seen, tmp_path):
    args, context = seen("--quiet", "--state", "/nowhere", "doctor", "--state", str(tmp_path))
    assert (args.quiet, args.traceback, context.paths.state) == (True, False, tmp_path)


def test_a_full_disk_is_one_line_wherever_it_happens(monkeypatch, capsys):
    module = cli._command("doctor")

    def fail(_args, _context):
        raise OSError(28, "No space left on device", "/somewhere/file")

    monkeypatch.setattr(module, "main", fail)
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err.startswith("error: No space left on device (/somewhere/file). What was finished is kept")


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
