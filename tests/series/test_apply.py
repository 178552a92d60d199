from __future__ import annotations

import shutil
import stat

import pytest

from harness.errors import SeriesError, TreeError
from harness.series.apply import apply_series, build_tip

from .conftest import SERIES, numbered


def one_change(repo):
    base = repo.head()
    repo.commit("[Kernel][Perf] Change line 30\n\nWhy: it is slow.", {"engine/core.py": numbered(80, _30="thirty")})
    return base


def refusal(repo, series, pin):
    """The message of an apply that must fail, after a check that it changed nothing."""
    before = repo.state()
    with pytest.raises(SeriesError) as caught:
        apply_series(repo.path, series, pin)
    assert repo.state() == before
    return str(caught.value)


def test_the_tip_is_the_same_commit_on_every_machine_at_any_time(repo, series_of, pin):
    base = one_change(repo)
    series = series_of(repo, base)
    # Written down once: base, patch, committer and dates are fixed, so nothing of this machine or day can be in it.
    assert base == "01456bb586c2acb1d968c7d98ff4d41ec7ea777a"
    assert apply_series(repo.path, series, pin) == "1a944353da6c58c92be0e792e1d1d9f771739df3"


def test_two_clones_get_the_same_tip(repo, series_of, pin, tmp_path):
    base = one_change(repo)
    series = series_of(repo, base)
    repo.git("clone", "--quiet", str(repo.path), str(tmp_path / "clone"))
    assert apply_series(tmp_path / "clone", series, pin) == apply_series(repo.path, series, pin)


def test_a_shallow_clone_gets_the_same_tip(repo, series_of, pin, tmp_path):
    repo.commit("history", {"engine/more.py": "x\n"})
    base = one_change(repo)
    series = series_of(repo, base)
    repo.git("clone", "--quiet", "--depth=1", f"file://{repo.path}", str(tmp_path / "clone"))
    assert apply_series(tmp_path / "clone", series, pin) == apply_series(repo.path, series, pin)


def test_the_worktree_holds_what_the_patches_say(repo, series_of, pin):
    base = one_change(repo)
    expected = repo.state()[2]
    series = series_of(repo, base)
    tip = apply_series(repo.path, series, pin)
    assert repo.state() == (tip, "", expected)
    assert repo.git("rev-parse", "HEAD^") == base


def test_title_in_brackets_author_and_dates_survive(repo, series_of, pin):
    series = series_of(repo, one_change(repo))
    apply_series(repo.path, series, pin)
    said = repo.git("show", "--no-patch", "--format=%B|%an|%ae|%aI|%cn|%ce|%cI", "HEAD")
    assert said == (
        "[Kernel][Perf] Change line 30\n\nWhy: it is slow.\n|A. Author|author@example.org|2026-11-01T12:00:00+02:00"
        "|upkernel|upkernel@localhost|2026-11-01T12:00:00+02:00"
    )


@pytest.mark.parametrize(
    "files",
    [
        {"windows.txt": b"one\r\nTWO\r\nthree\r\n"},
        {"picture.bin": bytes(reversed(range(256)))},
        {"engine/new.py": "first\n"},
        {"engine/odd name\u00e9.py": "first\n"},
        {"engine/core.py": numbered(80) + "no line feed at the end"},
        {"engine/core.py": numbered(80, _5="space at the end   ", _6="\ttab", _7=" \tboth")},
        {"engine/core.py": numbered(80, _40="--- a/fake\n+++ b/fake\n@@ -1 +1 @@")},
        {"engine/core.py": b"line 1 in latin-1: \xe9\n" + numbered(80).encode()},
    ],
    ids=["crlf", "binary", "new file", "odd name", "no final newline", "whitespace", "fake header", "latin-1"],
)
def test_every_kind_of_change_arrives_byte_for_byte(repo, series_of, pin, files):
    base = repo.head()
    repo.commit("[Misc] Change\n\nText.", files)
    expected = repo.state()[2]
    apply_series(repo.path, series_of(repo, base), pin)
    assert repo.state()[1:] == ("", expected)


def test_a_rename_arrives(repo, series_of, pin):
    base = repo.head()
    repo.git("mv", "engine/other.py", "engine/renamed.py")
    repo.commit("[Misc] Rename\n\nText.")
    apply_series(repo.path, series_of(repo, base), pin)
    assert (repo.path / "engine/renamed.py").read_text() == numbered(20)
    assert not (repo.path / "engine/other.py").exists()


def test_a_change_of_mode_arrives(repo, series_of, pin):
    base = repo.head()
    (repo.path / "tool.sh").chmod(0o755)
    repo.commit("[Misc] Executable\n\nText.")
    series = series_of(repo, base)
    assert not (repo.path / "tool.sh").stat().st_mode & stat.S_IXUSR
    apply_series(repo.path, series, pin)
    assert (repo.path / "tool.sh").stat().st_mode & stat.S_IXUSR


def test_a_link_and_a_deletion_arrive(repo, series_of, pin):
    base = repo.head()
    (repo.path / "link").symlink_to("README.md")
    (repo.path / "tool.sh").unlink()
    repo.commit("[Misc] Link\n\nText.")
    apply_series(repo.path, series_of(repo, base), pin)
    assert (repo.path / "link").readlink().name == "README.md"
    assert not (repo.path / "tool.sh").exists()


def test_a_failure_names_patch_file_and_hunk_and_leaves_the_tree_as_it_was(repo, series_of, pin):
    base = repo.head()
    repo.commit("[Misc] First\n\nText.", {"engine/other.py": numbered(20, _3="three")})
    repo.commit("[Kernel] Second\n\nText.", {"engine/core.py": numbered(80, _10="ten", _60="sixty")})
    series = series_of(repo, base)
    repo.commit("moved on", {"engine/core.py": numbered(80, _60="another sixty")})
    message = refusal(repo, series, pin)
    assert "0002-kernel-second.patch ([Kernel] Second) does not apply" in message
    assert "engine/core.py: hunk 2 of 2 (line 57) does not match" in message
    assert "already applied" not in message


def test_every_file_that_fails_is_named(repo, series_of, pin):
    base = repo.head()
    changes = {"engine/other.py": numbered(20, _3="three"), "engine/core.py": numbered(80, _10="ten")}
    repo.commit("[Misc] Both\n\nText.", changes)
    series = series_of(repo, base)
    repo.commit("moved on", {"engine/other.py": numbered(20, _3="drei"), "engine/core.py": numbered(80, _10="zehn")})
    message = refusal(repo, series, pin)
    assert "engine/other.py: hunk 1 of 1" in message
    assert "engine/core.py: hunk 1 of 1" in message


def test_a_file_that_is_gone_is_said_to_be_gone(repo, series_of, pin):
    series = series_of(repo, one_change(repo))
    (repo.path / "engine/core.py").unlink()
    repo.commit("gone")
    assert "engine/core.py: there is no such file in the tree" in refusal(repo, series, pin)


def test_an_added_file_that_exists_with_other_content_is_named(repo, series_of, pin):
    base = repo.head()
    repo.commit("[Misc] New\n\nText.", {"engine/new.py": "ours\n"})
    series = series_of(repo, base)
    repo.commit("upstream's own", {"engine/new.py": "theirs\n"})
    assert "engine/new.py: the file it adds is there already" in refusal(repo, series, pin)


def test_a_binary_file_with_other_content_is_named(repo, series_of, pin):
    base = repo.head()
    repo.commit("[Misc] Binary\n\nText.", {"picture.bin": bytes(reversed(range(256)))})
    series = series_of(repo, base)
    repo.commit("moved on", {"picture.bin": bytes(256)})
    assert "picture.bin" in refusal(repo, series, pin)


def test_a_patch_that_is_in_already_is_said_to_be_in(repo, series_of, pin):
    base = one_change(repo)
    tip = repo.head()
    series = series_of(repo, base)
    repo.checkout(tip)
    assert "looks already applied" in refusal(repo, series, pin)


def test_a_moved_place_is_found_by_the_three_way_merge(repo, series_of, pin):
    series = series_of(repo, one_change(repo))
    moved = numbered(80, _27="other context")
    repo.commit("moved on", {"engine/core.py": moved})
    apply_series(repo.path, series, pin)
    assert (repo.path / "engine/core.py").read_text() == moved.replace("line 30\n", "thirty\n")


def test_a_renamed_file_is_found_by_the_three_way_merge(repo, series_of, pin):
    series = series_of(repo, one_change(repo))
    repo.git("mv", "engine/core.py", "engine/heart.py")
    repo.commit("upstream renamed it")
    apply_series(repo.path, series, pin)
    assert (repo.path / "engine/heart.py").read_text() == numbered(80, _30="thirty")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "0001-a.patch is empty"),
        (b"\n \n", "0001-a.patch is empty"),
        (b"just some text\n", "not a patch as `git format-patch` writes it: it has no From and no Date and no Subject line"),
        (b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "not a patch as `git format-patch` writes it"),
        (b"From 0 Mon Sep 17 00:00:00 2001\nFrom: A <a@b>\nSubject: x\n\ntext\n", "it has no Date line"),
        (
            b"From 0 Mon Sep 17 00:00:00 2001\nFrom: A <a@b>\nDate: Sun, 1 Nov 2026 12:00:00 +0200\nSubject: x\n\ntext\n",
            "0001-a.patch changes no file",
        ),
    ],
    ids=["empty", "blank", "text", "bare diff", "no date", "no change"],
)
def test_a_file_that_is_no_patch_is_refused_by_name(repo, make_series, pin, content, complaint):
    series = make_series(patches={"0001-a.patch": content})
    assert complaint in refusal(repo, series, pin)


def test_a_damaged_patch_is_refused_by_name(repo, series_of, pin):
    series = series_of(repo, one_change(repo))
    patch = series.patches[0]
    patch.write_bytes(patch.read_bytes().replace(b" line 33\n", b""))
    message = refusal(repo, series, pin)
    assert "0001-kernel-perf-change-line-30.patch" in message
    assert "corrupt patch" in message


def test_two_patches_in_one_file_are_refused(repo, series_of, pin):
    base = one_change(repo)
    repo.commit("[Misc] Second\n\nText.", {"engine/other.py": numbered(20, _3="three")})
    series = series_of(repo, base)
    first, second = series.patches
    first.write_bytes(first.read_bytes() + second.read_bytes())
    assert "0001-kernel-perf-change-line-30.patch holds more than one patch" in refusal(repo, series, pin)


def test_a_series_without_patches_is_refused(repo, make_series, pin):
    assert "vllm/x has no patches yet" in refusal(repo, make_series(), pin)


def test_uncommitted_changes_are_refused_and_kept(repo, series_of, pin):
    series = series_of(repo, one_change(repo))
    repo.write({"engine/other.py": "precious\n"})
    before = repo.state()
    with pytest.raises(TreeError, match="has uncommitted changes"):
        apply_series(repo.path, series, pin)
    assert repo.state() == before


def test_an_untracked_file_in_the_way_is_kept(repo, series_of, pin):
    base = repo.head()
    repo.commit("[Misc] New\n\nText.", {"engine/new.py": "ours\n"})
    series = series_of(repo, base)
    repo.write({"engine/new.py": "precious\n"})
    before = repo.state()
    with pytest.raises(TreeError, match=r"engine/new\.py"):
        apply_series(repo.path, series, pin)
    assert repo.state() == before


def test_series_are_applied_after_those_they_stand_on(repo, series_of, pin):
    base = repo.head()
    first = repo.commit("[Misc] First\n\nText.", {"engine/core.py": numbered(80, _30="thirty")})
    series_of(repo, base, "vllm/first")
    repo.checkout(first)
    repo.commit("[Misc] Second\n\nText.", {"engine/core.py": numbered(80, _30="thirty", _31="thirty-one")})
    second = series_of(repo, first, "vllm/second", SERIES.replace("after = []", 'after = ["vllm/first"]'))
    repo.checkout(base)
    apply_series(repo.path, second, pin)
    assert repo.git("log", "--format=%s", f"{base}..HEAD").splitlines() == ["[Misc] Second", "[Misc] First"]
    assert (repo.path / "engine/core.py").read_text() == numbered(80, _30="thirty", _31="thirty-one")


def test_the_branch_moves_along(repo, series_of, pin):
    base = one_change(repo)
    series = series_of(repo, base)
    repo.git("checkout", "--quiet", "-B", "topic", base)
    tip = apply_series(repo.path, series, pin)
    assert repo.git("rev-parse", "topic") == tip
    assert repo.git("symbolic-ref", "HEAD") == "refs/heads/topic"


def test_a_tip_can_be_built_in_a_bare_repository(repo, series_of, tmp_path):
    base = one_change(repo)
    series = series_of(repo, base)
    shutil.copytree(repo.path / ".git", tmp_path / "bare.git")
    bare = tmp_path / "bare.git"
    repo.git(f"--git-dir={bare}", "config", "core.bare", "true")
    tip = build_tip(bare, base, series.patches)
    assert repo.git(f"--git-dir={bare}", "show", f"{tip}:engine/core.py") + "\n" == numbered(80, _30="thirty")
