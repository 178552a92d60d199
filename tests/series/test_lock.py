from __future__ import annotations

import pytest

from harness.errors import PinError, SeriesError
from harness.series.lock import Built, check_lock, read_lock, record
from harness.vocabulary import Source

BASE, OTHER, TIP, NEW = ("a" * 40, "b" * 40, "c" * 40, "d" * 40)

TEXT = f"""\
# a comment of a person
[base."vllm-0.24.0"]
archive = "{BASE}" # and another

[tip."vllm/x"."0.24.0"]
archive = "{TIP}"
"""


@pytest.fixture
def lock(tmp_path):
    (tmp_path / "lock.toml").write_text(TEXT)
    return tmp_path / "lock.toml"


@pytest.fixture
def series(make_series):
    return make_series()


def test_what_is_locked_is_read(lock):
    read = read_lock(lock)
    assert read.bases == {("vllm-0.24.0", Source.ARCHIVE): BASE}
    assert read.tips == {("vllm/x", "0.24.0", Source.ARCHIVE): TIP}


def test_no_file_locks_nothing(tmp_path, pin, series):
    assert not check_lock(tmp_path / "lock.toml", Built(pin, Source.GIT, BASE, series, TIP))


def test_the_locked_commits_are_right(lock, pin, series):
    assert check_lock(lock, Built(pin, Source.ARCHIVE, BASE, series, TIP))
    assert check_lock(lock, Built(pin, Source.ARCHIVE, BASE))


def test_another_source_is_not_locked_yet(lock, pin, series):
    assert not check_lock(lock, Built(pin, Source.GIT, OTHER, series, NEW))
    assert not check_lock(lock, Built(pin, Source.GIT, OTHER))


def test_another_tip_is_an_error_that_says_both(lock, pin, series):
    with pytest.raises(SeriesError, match=f"vllm/x on vllm-0.24.0 from archive gives commit {NEW}, but .*lock.toml has {TIP}"):
        check_lock(lock, Built(pin, Source.ARCHIVE, BASE, series, NEW))


def test_another_base_is_an_error_that_says_both(lock, pin, series):
    with pytest.raises(PinError, match=f"vllm-0.24.0 from archive is commit {OTHER}, but .*lock.toml has {BASE}"):
        check_lock(lock, Built(pin, Source.ARCHIVE, OTHER, series, TIP))


def test_recorded_commits_are_locked_and_comments_stay(lock, pin, make_series):
    built = Built(pin, Source.ARCHIVE, BASE, make_series("vllm/y"), NEW)
    record(lock, built)
    assert check_lock(lock, built)
    assert lock.read_text().startswith(TEXT.rstrip())
    assert read_lock(lock).tips == {("vllm/x", "0.24.0", Source.ARCHIVE): TIP, ("vllm/y", "0.24.0", Source.ARCHIVE): NEW}


def test_recording_what_is_locked_changes_no_byte(lock, pin, series):
    before = lock.stat()
    record(lock, Built(pin, Source.ARCHIVE, BASE, series, TIP))
    assert lock.read_text() == TEXT
    assert lock.stat().st_mtime_ns == before.st_mtime_ns


def test_a_new_file_can_be_recorded_and_read(tmp_path, pin, series):
    built = Built(pin, Source.GIT, BASE, series, TIP)
    record(tmp_path / "lock.toml", built)
    assert check_lock(tmp_path / "lock.toml", built)
    assert (tmp_path / "lock.toml").read_text().startswith("# Written by")


def test_the_same_tip_keeps_the_tip_of_the_other_source(lock, pin, series):
    record(lock, Built(pin, Source.GIT, OTHER, series, NEW))
    record(lock, Built(pin, Source.ARCHIVE, BASE, series, TIP))
    assert read_lock(lock).tips == {("vllm/x", "0.24.0", Source.ARCHIVE): TIP, ("vllm/x", "0.24.0", Source.GIT): NEW}


def test_a_new_tip_drops_the_stale_one_of_the_other_source(lock, pin, series):
    record(lock, Built(pin, Source.GIT, OTHER, series, TIP))
    record(lock, Built(pin, Source.ARCHIVE, BASE, series, NEW))
    assert read_lock(lock).tips == {("vllm/x", "0.24.0", Source.ARCHIVE): NEW}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[base]\n=", r"lock\.toml is not valid TOML: .*line 2"),
        ("[bases]\n", "unknown table 'bases'; it has 'base' and 'tip'"),
        ("base = 1\n", "'base' is malformed: got 1, it must be a table"),
        ('[base.x]\nsvn = "1"\n', r"unknown field 'base\.x\.svn'; it must be one of git, archive"),
        ('[base.x]\ngit = "abc"\n', r"field 'base\.x\.git' is malformed: got 'abc', it must be 40 hexadecimal digits"),
        ('[tip."vllm/x"."0.24.0"]\ngit = 1\n', r"field 'tip\.vllm/x\.0\.24\.0\.git' is malformed"),
    ],
)
def test_a_malformed_lock_is_refused_and_kept(lock, pin, text, complaint):
    lock.write_text(text)
    with pytest.raises(PinError, match=complaint):
        read_lock(lock)
    with pytest.raises(PinError, match=complaint):
        record(lock, Built(pin, Source.GIT, BASE))
    assert lock.read_text() == text
