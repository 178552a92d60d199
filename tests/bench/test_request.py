"""Options of a bench session: what they mean, and which do not go together."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from harness.bench.request import add_arguments, request_of
from harness.errors import UsageError
from harness.vocabulary import Device, Mode, Tier


def parse(*words: str):
    parser = argparse.ArgumentParser()
    add_arguments(parser, default_series="vllm/default")
    return request_of(parser.parse_args(words))


def test_nothing_given_is_a_screen_of_the_default_series_on_the_cpu():
    request = parse()
    assert (request.patched, request.tier, request.device, request.pin) == ("vllm/default", Tier.SCREEN, Device.CPU, "bench")
    assert (request.aa, request.repeat, request.mode, request.fail_on) == (False, 1, None, frozenset())


def test_everything_given_arrives():
    request = parse(
        *("--patched", "vllm/x", "--confirm", "--mode", "process", "--generations", "12", "--seed", "9", "--keep"),
        *("--mirror", "m.git", "--workload", "vllm/w", "--model", "tiny", "--fail-on", "slower", "inconclusive"),
    )
    assert (request.tier, request.mode, request.generations, request.seed) == (Tier.CONFIRM, Mode.PROCESS, 12, 9)
    assert (request.mirror, request.workload, request.model, request.keep) == (Path("m.git"), "vllm/w", "tiny", True)
    assert request.fail_on == {"slower", "inconclusive"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--resume", "x", "--repeat", "2"), "--resume goes on with .* as it was planned; leave out --repeat"),
        (("--resume", "x", "--dry-run"), "leave out --dry-run"),
        (("--resume", "x", "--patched", "vllm/y", "--confirm", "--seed", "3"), "leave out --confirm, --patched, --seed"),
        (("--generations", "6"), "--generations goes with --confirm"),
        (("--aa", "--keep"), "--keep stores evidence about a series"),
    ],
)
def test_options_that_do_not_go_together(words, says):
    with pytest.raises(UsageError, match=says):
        parse(*words)


def test_what_is_done_with_the_result_goes_with_resume():
    request = parse("--resume", "x", "--keep", "--fail-on", "slower")
    assert (request.resume, request.keep, request.fail_on) == ("x", True, {"slower"})


def test_a_request_about_what_another_one_named():
    first = parse("--patched", "vllm/x", "--pin", "head", "--model", "tiny", "--mirror", "m.git")
    again = parse("--resume", "x").with_origin(first.origin)
    assert (again.patched, again.pin, again.model, again.mirror) == ("vllm/x", "head", "tiny", Path("m.git").resolve())


@pytest.mark.parametrize("number", ["0", "-1", "two", "1.5"])
def test_counts_are_whole_numbers_from_1(number, capsys):
    with pytest.raises(SystemExit) as stop:
        parse(f"--repeat={number}")
    assert stop.value.code == 2
    assert f"{number!r} is not a whole number" in capsys.readouterr().err
