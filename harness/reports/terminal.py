"""A report for a terminal: plain text, in columns; colour only where it is asked for."""

from __future__ import annotations

import textwrap

from harness.reports.evidence import Evidence
from harness.reports.table import HEADER, rows
from harness.reports.words import FOOTNOTE, headline, sections
from harness.vocabulary import ScreenSign, Verdict

__all__ = ["render_terminal"]

WIDTH = 120
_COLOURS = {
    Verdict.FASTER: "32",
    ScreenSign.WORTH_CONFIRMING: "32",
    Verdict.SLOWER: "31",
    Verdict.VOID: "31",
    ScreenSign.VOID: "31",
    Verdict.INCONCLUSIVE: "33",
}


def render_terminal(evidence: Evidence, *, colour: bool = False) -> str:
    """The verdict in the first line, then the table, then what a reviewer asks for. Ends with a newline."""
    line = headline(evidence)
    code = _COLOURS.get(evidence.decision.outcome)
    parts = [f"\x1b[1;{code}m{line}\x1b[0m" if colour and code else line, ""]
    body = rows(evidence)
    if body:
        widths = [max(len(row[index]) for row in (HEADER, *body)) for index in range(len(HEADER))]
        parts += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (HEADER, *body)
        ]
        parts += ["", *textwrap.wrap(FOOTNOTE[evidence.plan.tier], WIDTH), ""]
    for title, lines in sections(evidence):
        parts.append(title)
        for one in lines:
            parts += textwrap.wrap(one, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
    return "\n".join(parts) + "\n"
