from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness.errors import TreeError
from harness.git import git
from harness.trees.repository import locked, repository, resolve
from harness.vocabulary import Engine

HOLD = """
import sys
from pathlib import Path
from harness.paths import Paths
from harness.progress import Progress
from harness.trees.repository import locked
from harness.vocabulary import Engine
with locked(Paths.of(root=Path(sys.argv[1]), state=Path(sys.argv[2])), Engine.VLLM, Progress(quiet=True)):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_process(paths):
    """Another harness process that holds the vLLM repository until it is ended."""
    command = [sys.executable, "-c", HOLD, str(paths.root), str(paths.state)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_told_who_has_the_repository(paths, progress, said, other_process):
    with pytest.raises(TreeError) as caught, locked(paths, Engine.VLLM, progress, wait=0.1):
        pytest.fail("the lock was given to both")
    assert f"in use by process {other_process.pid} " in str(caught.value)
    assert "Wait until that is done, or end it" in str(caught.value)
    assert f"waiting up to 0 s for process {other_process.pid}" in said.getvalue()


def test_a_killed_process_holds_nothing(paths, progress, other_process):
    other_process.kill()
    other_process.wait()
    with locked(paths, Engine.VLLM, progress, wait=0.1):
        pass


def test_another_engine_is_not_held(paths, progress, other_process):
    with locked(paths, Engine.SGLANG, progress, wait=0.1):
        pass


def test_the_lock_is_free_after_an_error(paths, progress):
    with pytest.raises(ValueError, match="x"), locked(paths, Engine.VLLM, progress):
        raise ValueError("x")
    with locked(paths, Engine.VLLM, progress, wait=0.1):
        pass


def test_locks_that_a_killed_git_left_are_cleared(paths, progress):
    repo = repository(paths, Engine.VLLM)
    stale = [repo / "shallow.lock", repo / "refs" / "upkernel" / "git" / "1.0.lock"]
    users = repo / "refs" / "heads" / "mine.lock"
    for path in (*stale, users):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with locked(paths, Engine.VLLM, progress):
        assert not any(path.exists() for path in stale)
        assert users.exists()


def test_a_name_that_is_no_commit_resolves_to_nothing(paths):
    repo = repository(paths, Engine.VLLM)
    blob = git(repo, "hash-object", "-w", "--stdin", stdin=b"x").stdout
    assert [resolve(repo, name) for name in ("", "missing", "--all", "a\nb", blob)] == [None] * 5


def test_upstreams_attributes_do_not_change_what_is_checked_out(paths, tmp_path):
    repo = repository(paths, Engine.VLLM)
    content = b"one\r\ntwo\n$Id$\n"
    text = {".gitattributes": b"* text eol=crlf ident working-tree-encoding=UTF-16 filter=lfs -diff\n", "file.txt": content}
    blobs = {name: git(repo, "hash-object", "-w", "--stdin", stdin=data).stdout for name, data in text.items()}
    listing = "".join(f"100644 blob {blob}\t{name}\n" for name, blob in blobs.items())
    tree = git(repo, "mktree", stdin=listing.encode()).stdout
    commit = git(repo, "commit-tree", tree, "-m", "x").stdout
    git(repo, "worktree", "add", "--quiet", "--detach", str(tmp_path / "tree"), commit)
    assert (tmp_path / "tree" / "file.txt").read_bytes() == content
    os.utime(tmp_path / "tree" / "file.txt")
    assert git(tmp_path / "tree", "status", "--porcelain").stdout == ""
    (tmp_path / "tree" / "file.txt").write_bytes(b"three\n")
    assert "+three" in git(tmp_path / "tree", "diff").stdout
