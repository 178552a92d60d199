"""A small engine with releases and a series, and a person who types commands in a checkout of upkernel."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from harness import cli
from harness.errors import PinError
from harness.paths import Paths
from harness.series.export import export_patches
from harness.series.store import write_patches
from tests.series.conftest import SERIES, Repository, numbered

ROOT = Path(__file__).parents[1]
PIN = """\
[{engine}."{version}"]
role = "{role}"
git = "file:///nonexistent/{engine}"
tag = "v{version}"
torch = "2.11.0"
requires = []

[{engine}."{version}".archive]
project = "{engine}"
file = "{engine}-{version}.tar.gz"
sha256 = "0862453adc1f3339f1a0c9dca1179c34d6ed6e118f87b6e5bddd120af614ac66"

"""
SPDX = "# SPDX-License-Identifier: Apache-2.0\n# SPDX-FileCopyrightText: Copyright contributors to the vLLM project\n"


@dataclasses.dataclass
class Person:
    """Types commands; the engine comes from `upstream`, a repository with tags v1.0 (bench) and v2.0 (head)."""

    paths: Paths
    upstream: Repository
    capsys: pytest.CaptureFixture

    def types(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        code = cli.main(["--quiet", *words])
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def asks(self, *words: str) -> tuple[int, str, str]:
        """With the upstream repository as the mirror."""
        return self.types(*words, "--mirror", str(self.upstream.path))

    def series(self, name: str = "vllm/faster-core") -> Path:
        return self.paths.patches / name

    def make_series(self, files: dict[str, str], name: str = "vllm/faster-core", **fields: str) -> Path:
        """One commit on v1.0, exported."""
        self.upstream.checkout("v1.0")
        tip = self.upstream.commit("[Kernel] Faster core\n\nIt is slow.", files)
        patches = export_patches(self.upstream.path, self.upstream.git("rev-parse", "v1.0^{commit}"), tip)
        self.upstream.git("checkout", "--quiet", "main")
        text = SERIES.replace('pin = "0.24.0"', 'pin = "1.0"')
        for key, value in fields.items():
            lines = [f"{key} = {value}" if line.startswith(f"{key} =") else line for line in text.splitlines()]
            text = "\n".join(lines) + "\n"
        directory = self.series(name)
        directory.mkdir(parents=True)
        (directory / "series.toml").write_text(text, encoding="utf-8")
        write_patches(directory, patches)
        return directory

    def release(self, files: dict[str, str | None], tag: str = "v2.0", message: str = "release") -> str:
        """Commit on main (None deletes a file) and tag it."""
        for name, content in files.items():
            if content is None:
                self.upstream.git("rm", "--quiet", name)
        commit = self.upstream.commit(message, {name: text for name, text in files.items() if text is not None})
        self.upstream.git("tag", tag)
        return commit


def _no_index(*_arguments):
    raise PinError("no index in tests")


@pytest.fixture
def person(tmp_path, monkeypatch, capsys):
    paths = Paths.of(root=tmp_path / "checkout", state=tmp_path / "state")
    (paths.root / "upstream").mkdir(parents=True)
    shutil.copy(ROOT / "upstream" / "rules.toml", paths.root / "upstream")
    pins = [PIN.format(engine="vllm", version=version, role=role) for version, role in (("1.0", "bench"), ("2.0", "head"))]
    paths.pins_file.write_text("".join(pins), encoding="utf-8")
    monkeypatch.setattr(Paths, "of", lambda root=None, state=None: paths)
    monkeypatch.setattr("harness.trees.bases.fetch", _no_index)
    upstream = Repository(tmp_path / "vllm-upstream")
    upstream.git("init", "--quiet", "--template=", "--initial-branch=main")
    files = {"engine/core.py": numbered(80), "engine/other.py": numbered(20), "engine/big.py": numbered(400)}
    upstream.commit("base", files)
    upstream.git("tag", "v1.0")
    return Person(paths, upstream, capsys)
