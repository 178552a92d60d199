"""What became of each test between base and patched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from harness.upstream_tests.model import ArmResult, Change, ChangeKind, TestOutcome
from harness.upstream_tests.record import Ended

__all__ = ["changes", "summary"]

GOOD = frozenset({TestOutcome.PASSED, TestOutcome.XFAILED, TestOutcome.XPASSED})
BAD = frozenset({TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.CRASHED, TestOutcome.TIMED_OUT})
ABSENT = Ended(TestOutcome.ABSENT, "")


def changes(base: Mapping[str, Ended], patched: Mapping[str, Ended], own_files: Collection[str]) -> tuple[Change, ...]:
    """Tests that do not pass on both arms, new failures first.

    `own_files` are test files that the series adds: a test of those has to pass, whatever it does on the base. Tests that are
    skipped or unavailable on both are not changes.
    """
    found = []
    for test in sorted({*base, *patched}):
        before, after = base.get(test, ABSENT), patched.get(test, ABSENT)
        kind = _kind(before.outcome, after.outcome, own=test.partition("::")[0] in own_files)
        if kind is not None:
            found.append(Change(test, kind, before.outcome, after.outcome, after.detail or before.detail))
    order = list(ChangeKind)
    return tuple(sorted(found, key=lambda one: order.index(one.kind)))


def summary(tip: str, ended: Mapping[str, Ended], seconds: float) -> ArmResult:
    """Counts by outcome, and skips by reason with those that need a network or a model among them, most frequent first."""
    counts = Counter(str(one.outcome) for one in ended.values())
    skips: Counter[str] = Counter()
    for one in ended.values():
        if one.outcome is TestOutcome.SKIPPED:
            skips[one.detail or "no reason given"] += 1
        elif one.outcome in {TestOutcome.UNAVAILABLE, TestOutcome.NOT_RUN, TestOutcome.ABSENT}:
            skips[f"{one.outcome}: {one.detail}"] += 1
    return ArmResult(tip, dict(sorted(counts.items())), dict(skips.most_common()), round(seconds, 1))


def _kind(before: TestOutcome, after: TestOutcome, *, own: bool) -> ChangeKind | None:
    if after in BAD:
        if before in BAD and not own:
            return ChangeKind.STILL_FAILING
        return ChangeKind.NEW_FAILURE
    if after in GOOD:
        return ChangeKind.FIXED if before in BAD else None
    if before not in GOOD:
        return None
    return ChangeKind.NEWLY_SKIPPED if after is TestOutcome.SKIPPED else ChangeKind.NO_LONGER_RUN
