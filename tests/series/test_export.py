from __future__ import annotations

import pytest

from harness.errors import SeriesError, TreeError
from harness.series.export import export_patches, slug, write_export
from harness.series.store import PatchFile

from .conftest import numbered

EXPECTED = b"""\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: "A. Author" <author@example.org>
Date: Sun, 1 Nov 2026 12:00:00 +0200
Subject: [Kernel][Perf] Shorter

Why: it is long.

diff --git a/engine/other.py b/engine/other.py
index c4352f8b46de5cdb88d0cc96958316db42dd2398..ff9b260e639e18ee263c4d45edc79516394c2c9a 100644
--- a/engine/other.py
+++ b/engine/other.py
@@ -7,7 +7,6 @@ line 6
 line 7
 line 8
 line 9
-line 10
 line 11
 line 12
 line 13
"""


def test_a_patch_file_is_exactly_this(repo):
    base = repo.head()
    text = numbered(20).replace("line 10\n", "")
    tip = repo.commit("[Kernel][Perf] Shorter\n\nWhy: it is long.", {"engine/other.py": text})
    assert export_patches(repo.path, base, tip) == (PatchFile("0001-kernel-perf-shorter.patch", EXPECTED),)


def test_letters_outside_ascii_are_encoded_in_headers_and_plain_in_the_message(repo):
    base = repo.head()
    tip = repo.commit("[Misc] \u00c4\n\nStra\u00dfe.", {"a": "1\n"})
    (patch,) = export_patches(repo.path, base, tip)
    head, _, rest = patch.content.partition(b"\n\n")
    assert head.splitlines()[3:] == [
        b"Subject: =?UTF-8?q?[Misc]=20=C3=84?=",
        b"MIME-Version: 1.0",
        b"Content-Type: text/plain; charset=UTF-8",
        b"Content-Transfer-Encoding: 8bit",
    ]
    assert rest.startswith("Stra\u00dfe.\n\ndiff --git ".encode())


def test_patches_are_numbered_oldest_first(repo):
    base = repo.head()
    repo.commit("[Misc] First\n\nText.", {"a": "1\n"})
    tip = repo.commit("[Misc] Second\n\nText.", {"a": "2\n"})
    assert [patch.name for patch in export_patches(repo.path, base, tip)] == ["0001-misc-first.patch", "0002-misc-second.patch"]


def test_commits_keep_their_order_whatever_their_dates(repo):
    base = repo.head()
    repo.commit("[Misc] First\n\nText.", {"a": "1\n"})
    repo.git("-c", "user.name=x", "commit", "--quiet", "--amend", "--no-edit", "--date=2030-01-01T00:00:00Z")
    tip = repo.commit("[Misc] Second\n\nText.", {"a": "2\n"})
    assert [patch.name[5:-6] for patch in export_patches(repo.path, base, tip)] == ["misc-first", "misc-second"]


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("[Kernel][Perf] Faster `x`: 2.5x", "kernel-perf-faster-x-2-5x"),
        ("Fa\u00dfbar", "fa-bar"),
        ("...", "patch"),
        ("word " * 30, "word-" * 11 + "word"),
        ("x" * 99, "x" * 60),
    ],
)
def test_file_names_come_from_subjects(subject, name):
    assert slug(subject) == name


def test_nothing_to_export_is_an_error(repo):
    with pytest.raises(SeriesError, match="there are no commits after the base"):
        export_patches(repo.path, repo.head(), repo.head())


def test_commits_on_another_base_are_an_error(repo):
    base = repo.head()
    other = repo.commit("other", {"a": "1\n"})
    repo.checkout(base)
    tip = repo.commit("mine", {"b": "1\n"})
    with pytest.raises(SeriesError, match=f"{tip[:12]} does not stand on the base {other[:12]}: rebase"):
        export_patches(repo.path, other, tip)


def test_a_merge_is_an_error_that_names_it(repo):
    base = repo.head()
    other = repo.commit("other", {"a": "1\n"})
    repo.checkout(base)
    repo.commit("mine", {"b": "1\n"})
    repo.git("merge", "--quiet", "--no-ff", "-m", "merge", other)
    with pytest.raises(SeriesError, match=f"commit {repo.head()[:12]} is a merge"):
        export_patches(repo.path, base, repo.head())


def test_an_empty_commit_is_an_error_that_names_it(repo):
    base = repo.head()
    repo.git("commit", "--quiet", "--allow-empty", "--message", "nothing")
    with pytest.raises(SeriesError, match=r"\(nothing\) changes no file"):
        export_patches(repo.path, base, repo.head())


def test_a_folder_that_is_no_repository_is_an_error(tmp_path):
    with pytest.raises(TreeError, match="not a git repository"):
        export_patches(tmp_path, "HEAD", "HEAD")


def test_written_patches_replace_those_that_were_there(make_series):
    series = make_series(patches={"0001-old.patch": b"1", "0002-same.patch": b"2"})
    write_export(series, (PatchFile("0001-new.patch", b"3"), PatchFile("0002-same.patch", b"2")))
    assert {file.name: file.read_bytes() for file in series.directory.glob("*.patch")} == {
        "0001-new.patch": b"3",
        "0002-same.patch": b"2",
    }


def test_patches_for_another_pin_go_to_its_port(make_series):
    series = make_series(patches={"0001-own.patch": b"1"})
    write_export(series, (PatchFile("0001-port.patch", b"2"),), "0.33.0")
    assert (series.directory / "ports/0.33.0/0001-port.patch").read_bytes() == b"2"
    assert (series.directory / "0001-own.patch").read_bytes() == b"1"
