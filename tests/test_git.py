from __future__ import annotations

import hashlib
import time

import pytest

from harness.errors import TreeError
from harness.git import GitCommandError, git, git_bytes, git_feed


@pytest.fixture
def repo(tmp_path):
    path = tmp_path / "repo"
    path.mkdir()
    git(path, "init", "--quiet", "--template=")
    return path


def test_output_has_no_last_newline(repo):
    assert git(repo, "rev-parse", "--is-bare-repository").stdout == "false"


def test_bytes_come_as_they_are(repo):
    content = b"a\r\n\xff\x00\n"
    blob = git(repo, "hash-object", "-w", "--stdin", stdin=content).stdout
    assert git_bytes(repo, "cat-file", "blob", blob) == content


def test_input_from_a_file(repo, tmp_path):
    (tmp_path / "input").write_bytes(b"text")
    # git's own definition: sha1 of "blob 4\\0text"
    expected = hashlib.sha1(b"blob 4\0text", usedforsecurity=False).hexdigest()
    assert git(repo, "hash-object", "--stdin", stdin=tmp_path / "input").stdout == expected


def test_a_failure_names_command_place_and_words(repo):
    with pytest.raises(GitCommandError) as caught:
        git(repo, "rev-parse", "--verify", "nothing")
    assert isinstance(caught.value, TreeError)
    assert caught.value.status == 128
    assert f"`git rev-parse --verify nothing` in {repo} failed with status 128" in str(caught.value)
    assert "Needed a single revision" in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(TreeError, match="there is no such folder"):
        git(tmp_path / "missing", "status")


def test_the_users_variables_do_not_get_through(repo, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.abbrev")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "nonsense")
    assert git(repo, "rev-parse", "--git-dir").stdout == ".git"


def test_the_users_configuration_does_not_get_through(repo, tmp_path, monkeypatch):
    (tmp_path / ".gitconfig").write_text("[user]\n  name = Somebody\n[commit]\n  gpgSign = true\n", encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    git(repo, "commit", "--quiet", "--allow-empty", "--message", "x")
    assert git(repo, "log", "--format=%an %ae %cn").stdout == "upkernel upkernel@localhost upkernel"
    assert git(repo, "config", "--default", "none", "user.name").stdout == "none"
    assert git(repo, "config", "user.name", user_config=True).stdout == "Somebody"


def test_hooks_do_not_run(repo):
    hook = repo / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    hook.chmod(0o755)
    git(repo, "commit", "--quiet", "--allow-empty", "--message", "x")


def test_a_command_that_hangs_is_ended(repo):
    started = time.monotonic()
    with pytest.raises(GitCommandError, match="did not complete in"):
        git(repo, "-c", "alias.hang=!sleep 30", "hang", timeout=0.3)
    assert time.monotonic() - started < 10


def stream(*after: bytes):
    yield b"commit refs/heads/new\ncommitter A <a@example.org> 1 +0000\ndata 1\nx"
    yield from after


def test_a_fed_command_gets_everything(repo):
    git_feed(repo, "fast-import", "--quiet", "--done", chunks=stream(b"\nM 100644 inline a\ndata 2\nhi\n", b"done\n"))
    assert git_bytes(repo, "show", "refs/heads/new:a") == b"hi"


def test_a_feed_that_raises_keeps_nothing(repo):
    def broken():
        yield from stream(b"\n")
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        git_feed(repo, "fast-import", "--quiet", "--done", chunks=broken())
    assert git(repo, "for-each-ref").stdout == ""


def test_a_fed_command_that_fails_says_why(repo):
    with pytest.raises(GitCommandError, match="Unsupported command"):
        git_feed(repo, "fast-import", "--quiet", "--done", chunks=[b"nonsense\n", b"x" * 1_000_000])
