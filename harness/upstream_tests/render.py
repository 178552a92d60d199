"""What a person reads of it: counts of both arms, then each test that is not as it was."""

from __future__ import annotations

from collections.abc import Iterator

from harness.upstream_tests.model import ArmResult, ChangeKind, TestReport

__all__ = ["render"]

SHOWN = 30  # tests of one kind


def render(report: TestReport) -> str:
    """Lines without a newline at the end."""
    return "\n".join(_lines(report))


def _lines(report: TestReport) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield f"{report.series} on {report.engine} {report.pin}, {report.machine} ({versions})"
    names = sorted({*report.base.counts, *report.patched.counts})
    yield " ".join([f"{'':8}", *(f"{name:>{max(8, len(name))}}" for name in names), f"{'seconds':>8}"])
    for word, arm in (("base", report.base), ("patched", report.patched)):
        cells = [f"{arm.counts.get(name, 0):>{max(8, len(name))}}" for name in names]
        yield " ".join([f"{word:8}", *cells, f"{arm.seconds:>8.1f}"])
    for file in report.missing_files:
        yield f"not in this source of {report.engine} {report.pin}: {file}"
    for kind in ChangeKind:
        tests = [one for one in report.changes if one.kind is kind]
        if tests:
            yield f"{kind} ({len(tests)}):"
        for one in tests[:SHOWN]:
            yield f"  {one.test}: {one.base} -> {one.patched}" + (f": {one.detail}" if one.detail else "")
        if len(tests) > SHOWN:
            yield f"  and {len(tests) - SHOWN} more"
    yield from _skips("base", report.base)
    yield from _skips("patched", report.patched)


def _skips(word: str, arm: ArmResult) -> Iterator[str]:
    if arm.skips:
        yield f"skipped on {word}, by reason:"
        yield from (f"  {count:>5}  {reason}" for reason, count in arm.skips.items())
