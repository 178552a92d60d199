"""A small engine in git, whose commits have fixed dates, and a checkout with one series of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.paths import Paths
from harness.pins.model import Archive, ArchiveKind, Pin
from harness.series.export import export_patches
from harness.series.model import Series
from harness.series.reader import read_series
from harness.series.store import write_patches
from harness.vocabulary import Engine, PinRole

SERIES = """\
title = "Faster core"
why = "It is slow."
links = ["https://example.org/issues/1"]
after = []
status = "draft"
status_date = 2026-11-30
pin = "0.24.0"
ports = []
workloads = []
upstream_tests = []
evidence = []
build = false
removal = "Upstream has it."

[duplicates]
date = 2026-11-30
links = []
"""


class Repository:
    """A repository of the test's own, made with plain git in a clean environment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def git(self, *arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment |= {
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_AUTHOR_NAME": "A. Author",
            "GIT_AUTHOR_EMAIL": "author@example.org",
            "GIT_AUTHOR_DATE": "2026-11-01T12:00:00+0200",
            "GIT_COMMITTER_NAME": "C. Committer",
            "GIT_COMMITTER_EMAIL": "committer@example.org",
            "GIT_COMMITTER_DATE": "2026-11-02T12:00:00+0200",
        }
        command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", *arguments]
        done = subprocess.run(command, cwd=self.path, env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def write(self, files: dict[str, bytes | str]) -> None:
        for name, content in files.items():
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)

    def commit(self, message: str, files: dict[str, bytes | str] | None = None) -> str:
        self.write(files or {})
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.head()

    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def checkout(self, commit: str) -> None:
        self.git("checkout", "--quiet", "--detach", commit)

    def state(self) -> tuple[str, str, dict[str, bytes]]:
        """HEAD, status and every file: what a failed apply may not change."""
        files = {str(file.relative_to(self.path)): file.read_bytes() for file in self.path.rglob("*") if file.is_file()}
        tracked = {name: content for name, content in files.items() if not name.startswith(".git/")}
        return self.head(), self.git("status", "--porcelain"), tracked


def numbered(count: int, **changes: str) -> str:
    """Lines `line 1` to `line COUNT`; `_7="new"` puts another text in line 7."""
    return "".join(f"{changes.get(f'_{number}', f'line {number}')}\n" for number in range(1, count + 1))


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine at its pin: HEAD is the base, detached."""
    repository = Repository(tmp_path_factory.mktemp("template") / "engine")
    repository.git("init", "--quiet", "--template=", "--initial-branch=main")
    base = repository.commit(
        "base",
        {
            "engine/core.py": numbered(80),
            "engine/other.py": numbered(20),
            "windows.txt": b"one\r\ntwo\r\nthree\r\n",
            "tool.sh": "#!/bin/sh\n",
            "picture.bin": bytes(range(256)),
            "README.md": "# engine\n",
        },
    )
    repository.checkout(base)
    return repository.path


@pytest.fixture
def repo(template: Path, tmp_path: Path) -> Repository:
    """A copy of the template of this test's own."""
    shutil.copytree(template, tmp_path / "engine", symlinks=True)
    return Repository(tmp_path / "engine")


@pytest.fixture
def pin() -> Pin:
    return make_pin("0.24.0")


def make_pin(version: str) -> Pin:
    archive = Archive("vllm", f"vllm-{version}.tar.gz", "0" * 64, ArchiveKind.SDIST, "")
    return Pin(Engine.VLLM, version, PinRole.BENCH, "https://example.org/vllm", f"v{version}", None, archive, "2.11.0", (), ())


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.of(root=tmp_path / "checkout", state=tmp_path / "state")


@pytest.fixture
def make_series(paths: Paths) -> Callable[..., Series]:
    """Write a series.toml (the text's fields replaced by `fields`) and patch files, and read it."""

    def make(name: str = "vllm/x", patches: dict[str, bytes] | None = None, text: str = SERIES) -> Series:
        directory = paths.patches / name
        directory.mkdir(parents=True)
        (directory / "series.toml").write_text(text, encoding="utf-8")
        for file, content in (patches or {}).items():
            (directory / file).write_bytes(content)
        return read_series(paths, name)

    return make


@pytest.fixture
def series_of(make_series: Callable[..., Series], paths: Paths) -> Callable[..., Series]:
    """The series whose patches are the commits of a repository after `base`; HEAD goes back to `base`."""

    def make(repository: Repository, base: str, name: str = "vllm/x", text: str = SERIES) -> Series:
        patches = export_patches(repository.path, base, repository.head())
        repository.checkout(base)
        series = make_series(name, text=text)
        write_patches(series.directory, patches)
        return read_series(paths, name)

    return make
