"""Every series in patches/: fit to be read, and the same commit on every machine."""

from __future__ import annotations

import pytest

from harness.paths import Paths
from harness.pins.reader import read_pins
from harness.progress import Progress
from harness.series.lint import Severity, lint_series
from harness.series.lock import read_lock
from harness.series.reader import list_series, read_series
from harness.series.rules import read_rules
from harness.series.verify import round_trip
from harness.trees.repository import repository
from harness.trees.worktrees import base_of
from harness.vocabulary import Source

PATHS = Paths.of()
SERIES = list_series(PATHS)
LOCK = read_lock(PATHS.lock_file)
# A series and each pin that it has patches for.
TARGETS = [(name, pin) for name in SERIES for pin in (read_series(PATHS, name).pin, *read_series(PATHS, name).ports)]


@pytest.mark.parametrize("name", SERIES)
def test_lint_finds_no_error(name):
    series = read_series(PATHS, name)
    findings = lint_series(series, read_rules(PATHS.root / "upstream" / "rules.toml", series.engine))
    assert [str(finding) for finding in findings if finding.severity is Severity.ERROR] == []


@pytest.mark.parametrize(("name", "pin"), TARGETS)
def test_its_tip_from_the_archive_is_locked(name, pin):
    assert (name, pin, Source.ARCHIVE) in LOCK.tips


def test_the_lock_names_no_series_that_is_gone():
    assert {name for name, _, _ in LOCK.tips} <= set(SERIES)


@pytest.mark.engine  # fetches the release's archive from the package index, or finds it in the state folder
@pytest.mark.parametrize(("name", "version"), TARGETS)
def test_it_applies_to_the_locked_tip_and_exports_to_the_same_bytes(name, version):
    series = read_series(PATHS, name)
    pin = read_pins(PATHS.pins_file).find(series.engine, version)
    base = base_of(PATHS, pin, progress=Progress(), source=Source.ARCHIVE)
    assert base.commit == LOCK.bases[pin.name, Source.ARCHIVE]
    made = round_trip(repository(PATHS, pin.engine), base.commit, series, pin)
    assert made.stale == ()
    assert made.tip == LOCK.tips[name, version, Source.ARCHIVE]
