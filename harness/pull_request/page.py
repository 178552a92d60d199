"""The page of a pull request: what the series, its evidence and the engine's rules say, part by part."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from harness.pins.model import Pin
from harness.pull_request.evidence import Gathered
from harness.pull_request.template import Template, fill
from harness.reports.evidence import Evidence
from harness.reports.markdown import escape
from harness.reports.table import HEADER, rows
from harness.reports.words import FOOTNOTE, headline, sections
from harness.series.model import PullRequestNotes, Series
from harness.series.rules import Page, Part, Rules
from harness.upstream_tests.model import ArmResult, TestReport
from harness.vocabulary import Slot

__all__ = ["Subject", "render_page", "title_of"]

# Where a submitter has to write; `--branch` refuses while one of these is left.
TO_FILL = "**TO BE FILLED IN BY THE SUBMITTER**"
# Of an experiment's report, what a reviewer looks for first.
SHOWN = frozenset({"points", "A/A control"})


@dataclass(frozen=True, slots=True)
class Subject:
    """What a page is about. `tips` are (pin, source, commit) as locked."""

    series: Series
    notes: PullRequestNotes
    head: Pin
    rules: Rules
    page: Page
    template: Template
    gathered: Gathered
    tips: tuple[tuple[str, str, str], ...]
    # Whether the engine's linters were run on the head pin; they were content, or there would be no page.
    linted: bool


def title_of(series: Series, notes: PullRequestNotes) -> str:
    """The title with the engine's prefix, the number and the device."""
    return f"{series.title}: {notes.number} ({notes.device})"


def render_page(subject: Subject, today: datetime.date) -> str:
    """The whole PR.md: a comment for the submitter, the title, and the engine's template filled in."""
    parts = {
        Part.SUMMARY: _summary(subject),
        Part.CLAIMS: _claims(subject),
        Part.MEASUREMENTS: _measurements(subject),
        Part.EXACTNESS: _headed("Exactness", subject.notes.exactness),
        Part.TESTS: _tests(subject.gathered.tests),
        Part.REPRODUCTION: _headed("Reproduction", _commands(subject.notes.reproduce)),
        Part.EVALUATIONS: _headed(
            "Accuracy evaluations", f"{TO_FILL}: run these and add the results.\n\n{_commands(subject.notes.evaluations)}"
        ),
        Part.DETAILS: _details(subject),
        Part.DUPLICATES: _duplicates(subject),
        Part.LINT: _lint(subject),
        Part.DISCLOSURE: _headed(
            "AI assistance", subject.notes.ai_assistance or f"{TO_FILL}: whether and how AI assistance was used."
        ),
    }
    title = title_of(subject.series, subject.notes)
    return f"{_for_the_submitter(subject, today)}\n# {title}\n\n{fill(subject.template, subject.page, parts)}"


def _for_the_submitter(subject: Subject, today: datetime.date) -> str:
    series, notes = subject.series, subject.notes
    left = ["read every line of the patch: you will have to defend it", "run the accuracy evaluations and add their results"]
    if not notes.ai_assistance:
        left.append("state in your own words whether and how AI assistance was used ([pr] ai_assistance in series.toml)")
    if notes.duplicates_checked is None:
        left.append(
            "look for duplicates on the day you submit ([pr] duplicates_checked): " + "; ".join(subject.page.duplicates)
        )
    left += [
        "tick what is true in the checklist, and nothing else",
        f"`nox -s pr -- {series.id} --branch NAME` makes the signed-off branch",
    ]
    commits = "\n".join(f"  {pin} ({source}): {commit}" for pin, source, commit in subject.tips)
    return (
        f"<!-- Written by `nox -s pr -- {series.id}` on {today}, from series.toml and evidence/; change those, not this file.\n"
        f"Template: {subject.template.origin}\nCommits:\n{commits}\nLeft to you before you submit:\n"
        + "".join(f"- {one}\n" for one in left)
        + "-->\n"
    )


def _summary(subject: Subject) -> str:
    series = subject.series
    return f"{series.why.strip()}\n\nRelated: {', '.join(series.links)}"


def _claims(subject: Subject) -> str:
    claim = subject.notes.claim
    layers = (
        ("kernel time", claim.kernel),
        ("share of the step", claim.share),
        ("predicted end to end", claim.predicted),
        ("measured end to end", claim.measured),
    )
    table = _table(("layer", "number"), layers)
    verdicts = "\n".join(
        f"- {evidence.plan.workload}: {escape(headline(evidence))}" for _, evidence in subject.gathered.confirmed
    )
    return f"{table}\n\n{verdicts}"


def _measurements(subject: Subject) -> str:
    parts = [_experiment(evidence) for _, evidence in subject.gathered.confirmed]
    if subject.gathered.other:
        parts.append("Further files beside the patch: " + ", ".join(f"`{name}`" for name in subject.gathered.other))
    if subject.notes.not_run:
        parts.append(f"Not run: {subject.notes.not_run}")
    return "\n\n".join(parts)


def _experiment(evidence: Evidence) -> str:
    plan = evidence.plan
    table = _table(HEADER, rows(evidence))
    versions = evidence.arms[Slot.BASE].packages
    known = ", ".join(f"{name} {versions[name]}" for name in ("torch", "triton", "flashinfer-python") if name in versions)
    how = f"{plan.workload}, {plan.tier}, {plan.mode} mode, {len(plan.generations)} generations, on {plan.device}; {known}"
    lists = "\n\n".join(
        f"{title}:\n\n" + "\n".join(f"- {escape(line)}" for line in lines)
        for title, lines in sections(evidence)
        if title in SHOWN
    )
    return f"#### {plan.workload}\n\n{table}\n\n{escape(FOOTNOTE[plan.tier])}\n\n{lists}\n\n{how}"


def _tests(results: Sequence[tuple[str, TestReport]]) -> str:
    return _headed("Tests", "\n\n".join(_test_result(report) for _, report in results))


def _test_result(report: TestReport) -> str:
    names = sorted({*report.base.counts, *report.patched.counts})
    header = ("", *names)
    lines = tuple(
        (word, *(str(arm.counts.get(name, 0)) for name in names))
        for word, arm in (("base", report.base), ("patched", report.patched))
    )
    changes = [f"- {one.kind}: `{one.test}` ({one.base} → {one.patched})" for one in report.changes]
    skips = _skips(report.patched)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return "\n".join(
        [
            f"{report.engine} {report.pin} on {report.machine}; {versions}:",
            "",
            _commands((report.command,)),
            "",
            _table(header, lines),
            *(["", *changes] if changes else []),
            *(["", "Skipped, by reason: " + skips] if skips else []),
        ]
    )


def _skips(arm: ArmResult) -> str:
    return "; ".join(f"{escape(reason)} ({count})" for reason, count in arm.skips.items())


def _details(subject: Subject) -> str:
    series = subject.series
    text = f"No longer needed when: {series.removal}"
    after = f"\n\nStands on: {', '.join(series.after)}, which has to be merged first." if series.after else ""
    return _headed("Limits", text + after)


def _duplicates(subject: Subject) -> str:
    series, notes = subject.series, subject.notes
    check = series.duplicates
    found = ", ".join(check.links) if check and check.links else "none found"
    by_hand = (
        f"searched again by the submitter on {notes.duplicates_checked}"
        if notes.duplicates_checked
        else f"{TO_FILL}: the date of your own search"
    )
    date = check.date if check else "never"
    return _headed("Open work on the same", f"Searched on {date}: {found}; {by_hand}.\n\n{notes.differs}")


def _lint(subject: Subject) -> str:
    linters = ", ".join(dict.fromkeys(linter.name for linter in subject.rules.linters))
    said = f"{linters} on the files of the series at {subject.head.version}: no complaint that the base does not have."
    if not subject.linted:
        said = f"{linters}: not run here."
    return _headed("Linters", f"{said}\n\n{_commands(subject.page.linters)}\n\n(versions: {subject.page.source})")


def _headed(heading: str, text: str) -> str:
    return f"**{heading}**\n\n{text.strip()}" if text.strip() else ""


def _commands(commands: Sequence[str]) -> str:
    return "```bash\n" + "\n".join(commands) + "\n```" if commands else ""


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rendered = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*rendered, *("| " + " | ".join(escape(cell) for cell in line) + " |" for line in lines)])
