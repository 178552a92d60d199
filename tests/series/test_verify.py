from __future__ import annotations

import pytest

from harness.errors import SeriesError
from harness.series.apply import build_tip
from harness.series.export import export_patches
from harness.series.reader import read_series
from harness.series.verify import own_base, prove_export, round_trip

from .conftest import SERIES, numbered


def test_commits_that_survive_give_the_tip_of_their_patches(repo):
    base = repo.head()
    tip = repo.commit("[Misc] Change\n\nText.\n\nMore text:\n  - one\n  - two", {"a": "1\n"})
    again = prove_export(repo.path, base, export_patches(repo.path, base, tip))
    assert repo.git("show", "--no-patch", "--format=%B %an %ai", again) == repo.git(
        "show", "--no-patch", "--format=%B %an %ai", tip
    )
    assert repo.git("rev-parse", f"{again}^{{tree}}") == repo.git("rev-parse", f"{tip}^{{tree}}")


@pytest.mark.parametrize(
    "message",
    [
        "[Misc] A subject\nof two lines\n\nText.",
        "[Misc] Cut\n\nText.\n---\nThis part would be lost.",
        "[Misc] Diff\n\nText.\n\ndiff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b",
        "[Misc] Header\n\nFrom: Somebody Else <else@example.org>\n\nText.",
    ],
    ids=["two-line subject", "separator", "diff", "mail header"],
)
def test_a_message_that_mail_form_would_change_is_refused(repo, message):
    base = repo.head()
    tip = repo.commit(message, {"engine/other.py": numbered(20, _5="five")})
    with pytest.raises(SeriesError, match="Write the commit message anew"):
        prove_export(repo.path, base, export_patches(repo.path, base, tip))


def test_a_series_as_exported_comes_back_to_the_same_bytes(repo, series_of, pin):
    base = repo.head()
    repo.commit("[Misc] First\n\nText.", {"a": "1\n"})
    repo.commit("[Misc] Second\n\nText.", {"a": "2\n"})
    series = series_of(repo, base)
    assert round_trip(repo.path, base, series, pin).stale == ()
    assert round_trip(repo.path, base, series, pin).tip == build_tip(repo.path, base, series.patches)


def test_a_patch_edited_by_hand_is_stale(repo, series_of, pin):
    base = repo.head()
    repo.commit("[Misc] First\n\nText.", {"engine/core.py": numbered(80, _30="thirty")})
    series = series_of(repo, base)
    patch = series.patches[0]
    patch.write_bytes(patch.read_bytes().replace(b"@@ -27,7 +27,7 @@", b"@@ -25,7 +25,7 @@"))
    assert round_trip(repo.path, base, series, pin).stale == ("0001-misc-first.patch differs at line 12",)


def test_a_patch_named_by_hand_is_stale(repo, series_of, pin, paths):
    base = repo.head()
    repo.commit("[Misc] First\n\nText.", {"a": "1\n"})
    series = series_of(repo, base)
    series.patches[0].rename(series.directory / "0001-mine.patch")
    stale = round_trip(repo.path, base, read_series(paths, "vllm/x"), pin).stale
    assert stale == ("0001-mine.patch would be called 0001-misc-first.patch",)


def test_a_stacked_series_is_exported_without_those_below(repo, series_of, pin):
    base = repo.head()
    first = repo.commit("[Misc] First\n\nText.", {"a": "1\n"})
    lower = series_of(repo, base, "vllm/first")
    repo.checkout(first)
    repo.commit("[Misc] Second\n\nText.", {"a": "2\n"})
    upper = series_of(repo, first, "vllm/second", SERIES.replace("after = []", 'after = ["vllm/first"]'))
    assert own_base(repo.path, base, upper, pin) == build_tip(repo.path, base, lower.patches)
    assert round_trip(repo.path, base, upper, pin).stale == ()
