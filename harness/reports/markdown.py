"""A report for a pull request: the same words, in Markdown, with the longer parts folded."""

from __future__ import annotations

from harness.reports.evidence import Evidence
from harness.reports.table import HEADER, rows
from harness.reports.words import FOOTNOTE, headline, sections, verdict_word

__all__ = ["escape", "render_markdown"]

# What a reviewer must see without a click.
_OPEN = {"failed or void", "A/A control", "generations made again"}


def escape(text: str) -> str:
    """Keep a cell in its column and a log line from turning into markup."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("~", "\\~")


def render_markdown(evidence: Evidence) -> str:
    """The verdict in the first line, then the table, then the sections, some folded. Ends with a newline."""
    word = verdict_word(evidence)
    line = escape(headline(evidence))
    parts = [line.replace(word, f"**{word}**", 1), ""]
    body = rows(evidence)
    if body:
        parts += [
            "| " + " | ".join(HEADER) + " |",
            "|" + " --- |" * len(HEADER),
            *("| " + " | ".join(escape(cell) for cell in row) + " |" for row in body),
            "",
            escape(FOOTNOTE[evidence.plan.tier]),
            "",
        ]
    for title, lines in sections(evidence):
        items = [f"- {escape(one)}" for one in lines]
        if title in _OPEN:
            parts += [f"**{title}**", "", *items, ""]
        else:
            parts += ["<details>", f"<summary>{title}</summary>", "", *items, "", "</details>", ""]
    return "\n".join(parts).rstrip() + "\n"
