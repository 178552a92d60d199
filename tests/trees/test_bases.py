from __future__ import annotations

import os
import stat
import subprocess
import tarfile
import time

import pytest

from harness.errors import ArchiveError, TreeError, UnknownTreeError
from harness.git import git, git_bytes
from harness.trees import bases
from harness.trees.bases import Base, NoAnswer, ensure_base, fetch_ref, import_archive
from harness.trees.cleaning import Kind, free, list_items
from harness.trees.repository import repository
from harness.vocabulary import Engine, Source


def listing(repo, commit):
    """Path -> (mode, content) of a commit."""
    entries = git(repo, "ls-tree", "-r", "-z", commit).stdout.split("\0")
    split = [entry.partition("\t") for entry in entries if entry]
    return {path: (head.split()[0], git_bytes(repo, "cat-file", "blob", head.split()[2])) for head, _, path in split}


@pytest.fixture
def repo(paths):
    return repository(paths, Engine.VLLM)


def test_an_sdist_becomes_one_commit_of_upstreams_files(paths, progress, pin_for, sdist, tar_entry):
    files = [
        (tar_entry("vllm-1.0/.gitignore"), b"ignored/\n"),
        (tar_entry("vllm-1.0/ignored/kept.py"), b"upstream ships it\n"),
        (tar_entry("vllm-1.0/run.sh", mode=0o775), b"#!/bin/sh\n"),
        (tar_entry('vllm-1.0/odd "name" ü.txt', mode=0o664), b"\r\n\x00\xff"),
        (tar_entry("vllm-1.0/link", tarfile.SYMTYPE, "run.sh"), b""),
        (tar_entry("vllm-1.0/vllm/_version.py"), b"generated"),
        (tar_entry("vllm-1.0/vllm/_C.abi3.so"), b"compiled"),
        (tar_entry("vllm-1.0/vllm.egg-info/SOURCES.txt"), b"generated"),
        (tar_entry("vllm-1.0/PKG-INFO"), b"generated"),
    ]
    pin = pin_for(sdist(paths.archives / "vllm-1.0.tar.gz", files))
    base = ensure_base(paths, pin, progress, source=Source.ARCHIVE)
    assert base.source is Source.ARCHIVE
    repo = repository(paths, Engine.VLLM)
    assert listing(repo, base.commit) == {
        ".gitignore": ("100644", b"ignored/\n"),
        "ignored/kept.py": ("100644", b"upstream ships it\n"),
        "run.sh": ("100755", b"#!/bin/sh\n"),
        'odd "name" ü.txt': ("100644", b"\r\n\x00\xff"),
        "link": ("120000", b"run.sh"),
    }
    assert git(repo, "rev-list", "--count", base.commit).stdout == "1"


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A user whose git is set to everything that could change a commit."""
    (tmp_path / ".gitconfig").write_text(
        "[user]\n  name = Somebody\n[core]\n  autocrlf = true\n[i18n]\n  commitEncoding = latin1\n"
        "[init]\n  defaultObjectFormat = sha256\n  templateDir = /nonexistent\n[commit]\n  gpgSign = true\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2001-01-01")
    monkeypatch.setenv("TZ", "Asia/Tokyo")


@pytest.fixture
def plain(tmp_path, monkeypatch):
    """The commit that plain git makes of the files of `pin_for`'s archive, with the fixed author, date and message."""

    def make(message: str) -> str:
        folder = tmp_path / "plain"
        (folder / "vllm").mkdir(parents=True)
        (folder / "vllm" / "__init__.py").write_bytes(b"")
        (folder / "vllm" / "core.py").write_bytes(b"one\n")
        who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in FIXED.items()}
        environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"} | who
        for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--cleanup=verbatim", "--message", message]):
            subprocess.run(["git", *words], cwd=folder, env=environment, check=True)
        listed = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, env=environment, check=True, capture_output=True, text=True
        )
        return listed.stdout.strip()

    return make


FIXED = {"NAME": "upkernel", "EMAIL": "upkernel@localhost", "DATE": "2000-01-01T00:00:00+0000"}


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_every_machine_makes_the_same_commit(paths, progress, pin_for, plain, umask):
    pin = pin_for()
    before = os.umask(umask)
    try:
        base = ensure_base(paths, pin, progress, source=Source.ARCHIVE)
    finally:
        os.umask(before)
    assert base.commit == plain(f"vllm 1.0\n\nFrom vllm-1.0.tar.gz\nsha256 {pin.archive.sha256}\n")


def test_a_wheels_files_lie_under_the_prefix(paths, progress, pin_for, wheel):
    modes = {"sglang/a.py": stat.S_IFREG | 0o755}
    archive = wheel(
        paths.archives / "sglang-1.0-py3-none-any.whl", {"sglang/a.py": b"a", "sglang-1.0.dist-info/RECORD": b""}, modes
    )
    pin = pin_for(archive, engine=Engine.SGLANG, prefix="python/")
    base = ensure_base(paths, pin, progress, source=Source.ARCHIVE)
    assert listing(repository(paths, Engine.SGLANG), base.commit) == {"python/sglang/a.py": ("100644", b"a")}


def test_a_bad_archive_leaves_no_commit(paths, progress, pin_for, sdist, tar_entry):
    repo = repository(paths, Engine.VLLM)
    pin = pin_for(
        sdist(paths.archives / "vllm-1.0.tar.gz", [(tar_entry("vllm-1.0/a"), b"a"), (tar_entry("vllm-1.0/../b"), b"b")])
    )
    with pytest.raises(ArchiveError, match="leads out of the archive"):
        ensure_base(paths, pin, progress, source=Source.ARCHIVE)
    assert git(repo, "for-each-ref").stdout == ""
    assert list(repo.glob("fast_import_crash_*")) == []


def test_an_archive_that_is_being_imported_is_not_cleaned_away(paths, progress, pin_for, monkeypatch):
    kept = []

    def import_while_somebody_cleans(repo, pin, archive):
        archives = [item for item in list_items(paths) if item.kind is Kind.ARCHIVES]
        kept.extend(removal.kept for removal in free(paths, archives, progress))
        return import_archive(repo, pin, archive)

    monkeypatch.setattr(bases, "import_archive", import_while_somebody_cleans)
    ensure_base(paths, pin_for(), progress, source=Source.ARCHIVE)
    assert kept == ["it is in use by another harness process"]


def test_git_comes_first_and_the_commit_is_whole_without_its_history(paths, repo, progress, pin_for, upstream):
    pin = pin_for(git_url=str(upstream.path))
    base = ensure_base(paths, pin, progress)
    assert base == Base(upstream.git("rev-parse", "v1.0^{commit}"), Source.GIT)
    assert listing(repo, base.commit)["vllm/core.py"] == ("100644", b"one\n")
    assert git(repo, "rev-list", "--count", base.commit).stdout == "1"


def test_a_git_source_that_does_not_answer_is_reported_and_the_archive_used(paths, progress, pin_for, said):
    assert ensure_base(paths, pin_for(), progress).source is Source.ARCHIVE
    assert "warning: /nonexistent/upstream.git does not answer:" in said.getvalue()
    assert "comes from its archive vllm-1.0.tar.gz instead" in said.getvalue()


def test_a_git_source_that_is_asked_for_and_does_not_answer_is_an_error(paths, progress, pin_for):
    with pytest.raises(NoAnswer, match="does not answer"):
        ensure_base(paths, pin_for(), progress, source=Source.GIT)


def test_a_server_that_hangs_is_given_up(paths, progress, pin_for, monkeypatch):
    import socket

    monkeypatch.setattr("harness.trees.bases.CONNECT_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pin = pin_for(git_url=f"http://127.0.0.1:{silent.getsockname()[1]}/x.git")
        started = time.monotonic()
        assert ensure_base(paths, pin, progress).source is Source.ARCHIVE
    assert time.monotonic() - started < 10


def test_a_mirror_is_used_instead_of_the_url(paths, progress, pin_for, upstream):
    base = ensure_base(paths, pin_for(), progress, mirror=upstream.path)
    assert base == Base(upstream.git("rev-parse", "v1.0^{commit}"), Source.GIT)


def test_a_mirror_that_lacks_the_tag_is_reported_with_the_nearest(paths, progress, pin_for, upstream, said):
    upstream.git("tag", "v1.1")
    upstream.git("tag", "--delete", "v1.0")
    assert ensure_base(paths, pin_for(), progress, mirror=upstream.path).source is Source.ARCHIVE
    assert "has no tag v1.0. Did you mean 'v1.1'?" in said.getvalue()


def test_a_mirror_without_the_tag_can_have_the_pinned_commit(paths, progress, pin_for, upstream):
    commit = upstream.git("rev-parse", "v1.0^{commit}")
    upstream.git("tag", "--delete", "v1.0")
    assert ensure_base(paths, pin_for(commit=commit), progress, mirror=upstream.path) == Base(commit, Source.GIT)


def test_a_mirror_that_is_not_there_is_an_error(paths, progress, pin_for, tmp_path):
    with pytest.raises(TreeError, match="is not a folder"):
        ensure_base(paths, pin_for(), progress, mirror=tmp_path / "missing")


def test_a_prefix_of_the_commit_is_completed(paths, progress, pin_for, upstream):
    commit = upstream.git("rev-parse", "v1.0^{commit}")
    assert ensure_base(paths, pin_for(git_url=str(upstream.path), commit=commit[:9]), progress).commit == commit


def test_a_tag_that_is_not_the_pinned_commit_is_an_error_and_not_a_reason_for_the_archive(paths, progress, pin_for, upstream):
    commit = upstream.git("rev-parse", "v1.0^{commit}")
    with pytest.raises(TreeError) as caught:
        ensure_base(paths, pin_for(git_url=str(upstream.path), commit="0123456"), progress)
    assert not isinstance(caught.value, NoAnswer)
    assert commit in str(caught.value)
    assert "0123456" in str(caught.value)


def test_what_is_there_is_used_without_asking_anyone(paths, progress, pin_for, upstream, monkeypatch):
    pin = pin_for(git_url=str(upstream.path))
    base = ensure_base(paths, pin, progress)
    monkeypatch.setattr("harness.trees.bases.fetch_commit", lambda *_args: pytest.fail("git was asked"))
    monkeypatch.setattr("harness.trees.bases.fetch", lambda *_args: pytest.fail("the index was asked"))
    assert ensure_base(paths, pin, progress) == base


def test_a_pin_that_was_changed_does_not_get_the_old_commit(paths, progress, pin_for, upstream):
    ensure_base(paths, pin_for(git_url=str(upstream.path)), progress)
    with pytest.raises(TreeError, match="pins vllm-1"):
        ensure_base(paths, pin_for(git_url=str(upstream.path), commit="0123456"), progress)


def test_branches_tags_and_full_hashes_of_a_mirror(paths, repo, pin_for, upstream):
    second = upstream.git("rev-parse", "main")
    upstream.git("branch", "topic/fast", "main")
    for name in ("main", "topic/fast", second):
        assert fetch_ref(repo, pin_for(), name, str(upstream.path)) == second
    assert fetch_ref(repo, pin_for(), "v1.0", str(upstream.path)) == upstream.git("rev-parse", "v1.0^{commit}")


def test_an_unknown_ref_offers_the_nearest(repo, pin_for, upstream):
    upstream.git("branch", "topic/fast", "main")
    with pytest.raises(UnknownTreeError, match=r"'topic/fats' is no ref of vllm.*Did you mean 'topic/fast'"):
        fetch_ref(repo, pin_for(), "topic/fats", str(upstream.path))
