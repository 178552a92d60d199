"""Everything that is missing for a pull request, in one list: nobody should have to run the command twelve times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness.pins.model import Pin
from harness.pull_request.evidence import Gathered
from harness.pull_request.template import Template, template_changes
from harness.series.lint import lint_series
from harness.series.model import PullRequestNotes, Series
from harness.series.patchfile import PatchText, read_patch
from harness.series.reader import own_patches
from harness.series.rules import Page, Rules, matches
from harness.vocabulary import SeriesStatus, Verdict

__all__ = ["changed_outside_tests", "missing"]

MOST_LINES = 150  # changed outside tests, a patch: what a maintainer reads in one sitting
OPEN = frozenset({SeriesStatus.DRAFT, SeriesStatus.READY, SeriesStatus.SUBMITTED})
SKELETON = """\
    [pr]
    number = "2.5x at batch 1, 32k"   # for the title
    device = "H200"                   # of the evidence; for the title
    differs = ""                      # from the open pull requests that the search for duplicates found
    exactness = ""                    # a Markdown table: by how much results change
    reproduce = []                    # commands that make the numbers again
    evaluations = []                  # accuracy evaluations that the submitter runs
    not_run = ""                      # what was not measured or run
    ai_assistance = ""                # the submitter's own words
    [pr.claim]
    kernel = ""                       # kernel time before and after
    share = ""                        # its share of the step, from a profile
    predicted = ""                    # what follows end to end
    measured = ""                     # what was measured end to end"""


def missing(series: Series, head: Pin, rules: Rules, template: Template, gathered: Gathered) -> tuple[str, ...]:
    """What keeps the page from being written; empty when nothing does. `template` is that of the head pin."""
    found = [*_series(series, head), *_patches(series, head, rules)]
    found += [f"{one.where}: {one.message}" for one in lint_series(series, rules)]
    found += [] if series.pr else [f"series.toml has no [pr]. Write:\n{SKELETON}"]
    found += list(_notes(series.pr)) if series.pr else []
    if rules.title_prefixes and not series.title.startswith(rules.title_prefixes):
        found.append(f"title {series.title!r} must start with one of {' '.join(rules.title_prefixes)}")
    found += list(_evidence(series, gathered))
    found += _template(template, rules.page)
    return tuple(dict.fromkeys(found))


def _series(series: Series, head: Pin) -> Iterator[str]:
    if series.status not in OPEN:
        yield f"status is {series.status}: there is nothing to send"
    if head.version != series.pin and head.version not in series.ports:
        port = f"`nox -s port -- {series.id} --to {head.version}`"
        yield f"there is no port to {head.name}, which a pull request must meet: {port}"
    if not series.upstream_tests:
        yield "upstream_tests is empty: name the engine's own tests of what the series changes"


def _patches(series: Series, head: Pin, rules: Rules) -> Iterator[str]:
    for path in _for_head(series, head):
        patch = read_patch(path)
        lines = changed_outside_tests(patch, path, rules)
        if lines > MOST_LINES:
            yield f"{path.name} changes {lines} lines outside tests, at most {MOST_LINES} can be read in one go: split it"


def changed_outside_tests(patch: PatchText, path: Path, rules: Rules) -> int:
    """Lines that the patch adds and removes in files that are not tests."""
    aside = {change.path for change in patch.changes if matches(change.path, rules.tests)}
    lines, here = 0, ""
    content = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    start = next((number for number, line in enumerate(content) if line.startswith("diff --git ")), len(content))
    for line in content[start:]:
        if line.startswith("diff --git "):
            here = next((change.path for change in patch.changes if line.endswith(f" b/{change.path}")), "")
        elif line[:1] in {"+", "-"} and not line.startswith(("+++ ", "--- ")) and here not in aside:
            lines += 1
    return lines


def _for_head(series: Series, head: Pin) -> tuple[Path, ...]:
    return own_patches(series, head.version) if head.version in series.ports else series.patches


def _notes(notes: PullRequestNotes) -> Iterator[str]:
    claim = notes.claim
    texts = {
        "number": notes.number,
        "device": notes.device,
        "differs": notes.differs,
        "exactness": notes.exactness,
        "claim.kernel": claim.kernel,
        "claim.share": claim.share,
        "claim.predicted": claim.predicted,
        "claim.measured": claim.measured,
    }
    yield from (f"[pr] {name} is empty" for name, text in texts.items() if not text)
    if not notes.reproduce:
        yield "[pr] reproduce is empty: which commands make the numbers again?"
    if not notes.evaluations:
        yield "[pr] evaluations is empty: which accuracy evaluations should the submitter run?"


def _evidence(series: Series, gathered: Gathered) -> Iterator[str]:
    yield from gathered.wrong
    if not gathered.confirmed:
        yield "no evidence is of a confirm experiment: a screen gives no verdict"
    elif not any(evidence.decision.verdict in {Verdict.FASTER, Verdict.EQUIVALENT} for _, evidence in gathered.confirmed):
        yield "no confirm experiment has the verdict faster or equivalent"
    if not gathered.tests:
        yield f"no evidence is a result of the engine's own tests: `nox -s upstream_tests -- {series.id} --save`"
    untested = set(series.upstream_tests) - {file for _, report in gathered.tests for file in report.files}
    if gathered.tests and untested:
        yield f"upstream tests that no result is of: {', '.join(sorted(untested))}"


def _template(template: Template, page: Page | None) -> list[str]:
    if page is None:
        return ["upstream/rules.toml has no pull request rules of the engine"]
    changes = template_changes(template, page)
    advice = (
        f"{template.origin} is not the template that upstream/rules.toml knows: {'; '.join(changes)}. Say there what goes where"
    )
    return [advice] if changes else []
