"""Golden files: what a reader sees, byte for byte. UPDATE_GOLDEN=1 writes them anew; read the difference."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from report_fakes import CASES, evidence_of

from harness.reports.markdown import render_markdown
from harness.reports.terminal import render_terminal

GOLDEN = Path(__file__).parent / "golden"


def check(name, text):
    file = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", sorted(CASES))
def test_terminal_report(case):
    check(f"{case}.txt", render_terminal(evidence_of(case)))


@pytest.mark.parametrize("case", sorted(CASES))
def test_markdown_report(case):
    check(f"{case}.md", render_markdown(evidence_of(case)))


@pytest.mark.parametrize("case", sorted(CASES))
def test_colour_adds_nothing_but_colour(case):
    plain, coloured = render_terminal(evidence_of(case)), render_terminal(evidence_of(case), colour=True)
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_a_verdict_is_coloured_and_a_plain_one_is_not():
    assert render_terminal(evidence_of("confirm-faster"), colour=True).startswith("\x1b[1;32mfaster")
    assert render_terminal(evidence_of("confirm-void"), colour=True).startswith("\x1b[1;31mvoid")
    assert "\x1b" not in render_terminal(evidence_of("screen-no-sign"), colour=True)


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_first_line_is_the_verdict(case):
    evidence = evidence_of(case)
    prefix = "A/A, no change to find: " if evidence.plan.aa else ""
    assert render_terminal(evidence).splitlines()[0].startswith(f"{prefix}{evidence.decision.outcome}: ")
    assert f"**{evidence.decision.outcome}**" in render_markdown(evidence).splitlines()[0]


def test_a_screen_never_prints_faster_as_its_result():
    for case in CASES:
        if case.startswith("screen"):
            text = render_terminal(evidence_of(case))
            assert "faster" not in text.replace("It never says faster.", "")


def test_a_void_experiment_quotes_no_number_to_take_away():
    text = render_terminal(evidence_of("confirm-void"))
    assert "patched/base" not in text
    assert "log: runs/3/2/log.txt" in text


def test_a_log_line_cannot_break_the_markdown_table_or_hide_text():
    text = render_markdown(evidence_of("confirm-void"))
    assert "a\\|b &lt;details>" in text
