"""Small archives and a small upstream repository in the shape of vLLM's."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from harness.paths import Paths
from harness.pins.model import Archive, ArchiveKind, Pin
from harness.progress import Progress
from harness.vocabulary import Engine, PinRole

NOWHERE = "/nonexistent/upstream.git"


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def write_sdist(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def write_wheel(path: Path, files: dict[str, bytes], modes: dict[str, int] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (modes or {}).get(name, stat.S_IFREG | 0o644) << 16
            wheel.writestr(info, content)
    return path


class Upstream:
    """A git repository of the engine's developers, driven with plain git."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "A",
            "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "C",
            "GIT_COMMITTER_EMAIL": "c@example.org",
        }
        return subprocess.run(
            ["git", *arguments], cwd=self.path, env=environment, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, files: dict[str, str], message: str = "change") -> str:
        for name, text in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def paths(tmp_path):
    return Paths.of(root=tmp_path / "checkout", state=tmp_path / "state")


@pytest.fixture
def said():
    """What the progress of these tests printed."""
    return io.StringIO()


@pytest.fixture
def progress(said):
    return Progress(said)


@pytest.fixture
def sdist():
    return write_sdist


@pytest.fixture
def tar_entry():
    return entry


@pytest.fixture
def wheel():
    return write_wheel


@pytest.fixture
def upstream(tmp_path):
    """A commit before version 1.0, that version, tagged, and one after it on main."""
    repository = Upstream(tmp_path / "upstream")
    repository.commit({"vllm/__init__.py": "", "vllm/core.py": "zero\n"}, "before")
    repository.commit({"vllm/core.py": "one\n"}, "first")
    repository.git("tag", "--annotate", "--message", "1.0", "v1.0")
    repository.commit({"vllm/core.py": "two\n"}, "second")
    return repository


@pytest.fixture
def pin_for(paths):
    """A pin whose archive is fetched already, and whose git URL does not answer unless one is given."""

    def make(archive: Path | None = None, *, engine=Engine.VLLM, version="1.0", git_url=NOWHERE, commit=None, prefix="") -> Pin:
        if archive is None:
            files = [
                ("vllm/__init__.py", b""),
                ("vllm/core.py", b"one\n"),
                ("setup.cfg", b"[egg_info]\n"),
                ("PKG-INFO", b"Name: vllm\n"),
            ]
            archive = write_sdist(
                paths.archives / "vllm-1.0.tar.gz", [(entry(f"vllm-1.0/{name}"), text) for name, text in files]
            )
        return Pin(
            engine=engine,
            version=version,
            role=PinRole.BENCH,
            git_url=git_url,
            tag=f"v{version}",
            commit=commit,
            archive=Archive(
                project=str(engine),
                filename=archive.name,
                sha256=hashlib.sha256(archive.read_bytes()).hexdigest(),
                kind=ArchiveKind.WHEEL if archive.suffix == ".whl" else ArchiveKind.SDIST,
                prefix=prefix,
            ),
            torch="2.11.0",
            requires=(),
            runtimes=(),
        )

    return make
