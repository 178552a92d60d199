"""The way of a series as a person goes it: new, commit, export, check, apply."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from harness import cli
from harness.paths import Paths

from .conftest import Repository, numbered

ROOT = Path(__file__).parents[2]
SPDX = "# SPDX-License-Identifier: Apache-2.0\n# SPDX-FileCopyrightText: Copyright contributors to the vLLM project\n"
PINS = """\
[vllm."0.24.0"]
role = "bench"
git = "file:///nonexistent/vllm"
tag = "v0.24.0"
torch = "2.11.0"
requires = []

[vllm."0.24.0".archive]
project = "vllm"
file = "vllm-0.24.0.tar.gz"
sha256 = "0862453adc1f3339f1a0c9dca1179c34d6ed6e118f87b6e5bddd120af614ac66"

[vllm."0.33.0"]
role = "head"
git = "file:///nonexistent/vllm"
tag = "v0.33.0"
torch = "2.14.0"
requires = []

[vllm."0.33.0".archive]
project = "vllm"
file = "vllm-0.33.0.tar.gz"
sha256 = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"
"""


class Person:
    """Types commands in a checkout of upkernel; the engine comes from a mirror."""

    def __init__(self, paths: Paths, mirror: Path, monkeypatch, capsys) -> None:
        self.paths = paths
        self.mirror = mirror
        self.capsys = capsys
        (paths.root / "upstream").mkdir(parents=True)
        paths.pins_file.write_text(PINS)
        shutil.copy(ROOT / "upstream" / "rules.toml", paths.root / "upstream")
        monkeypatch.setattr(cli, "COMMANDS", ("new", "apply", "export", "check"))
        monkeypatch.setattr(Paths, "of", lambda root=None, state=None: paths)

    def types(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        mirror = ("--mirror", str(self.mirror)) if "--tree" not in words or words[0] == "apply" else ()
        code = cli.main(["--quiet", *words, *mirror])
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def series(self, name: str) -> Path:
        return self.paths.patches / name

    def work(self, name: str) -> Repository:
        return Repository(self.paths.trees / "vllm" / f"work-{name}")


@pytest.fixture
def person(paths, repo, monkeypatch, capsys):
    repo.git("tag", "v0.24.0")
    head = repo.commit("moved on", {"engine/core.py": numbered(80, _60="sixty")})
    repo.git("tag", "v0.33.0", head)
    return Person(paths, repo.path, monkeypatch, capsys)


@pytest.fixture
def started(person):
    """A series with one good commit, exported."""
    assert person.types("new", "vllm/faster-core")[0] == 0
    work = person.work("faster-core")
    files = {"engine/core.py": numbered(80, _30="thirty"), "tests/test_core.py": SPDX + "x = 1\n"}
    work.commit("[Kernel] Faster core\n\nIt is slow.", files)
    assert person.types("export", "vllm/faster-core")[0] == 0
    return person


def test_a_new_series_is_a_draft_with_a_work_tree_at_the_bench_pin(person):
    code, out, _ = person.types("new", "vllm/faster-core")
    assert code == 0
    assert person.work("faster-core").state()[2]["engine/core.py"] == numbered(80).encode()
    assert str(person.work("faster-core").path) in out
    code, out, _ = person.types("check")
    assert code == 0
    assert "vllm/faster-core: to do: series.toml: title is empty" in out
    assert out.endswith("1 series: 0 errors, 6 to do\n")


def test_a_name_that_is_taken_is_refused_and_kept(started):
    before = (started.series("vllm/faster-core") / "series.toml").read_bytes()
    code, _, err = started.types("new", "vllm/faster-core")
    assert code == 1
    assert "vllm/faster-core exists already" in err
    assert (started.series("vllm/faster-core") / "series.toml").read_bytes() == before


def test_a_series_that_cannot_get_a_tree_is_not_left_half_made(person):
    person.mirror = person.mirror.parent / "gone"
    code, _, err = person.types("new", "vllm/faster-core")
    assert code == 1
    assert "gone is not a folder" in err
    assert not person.series("vllm/faster-core").exists()


def test_commits_become_patches_and_the_lock_gets_their_tip(started):
    (patch,) = started.series("vllm/faster-core").glob("*.patch")
    assert patch.name == "0001-kernel-faster-core.patch"
    assert b"\n+thirty\n" in patch.read_bytes()
    code, out, _ = started.types("apply", "vllm/faster-core")
    assert code == 0
    tip = re.search(r"tip +(\w+)", out)[1]
    assert f'git = "{tip}"' in started.paths.lock_file.read_text()
    assert (started.paths.trees / "vllm" / tip[:12] / "engine/core.py").read_text() == numbered(80, _30="thirty")


def test_check_with_apply_proves_an_exported_series(started):
    code, out, _ = started.types("check", "--apply")
    assert code == 0
    assert out.endswith("1 series: 0 errors, 5 to do\n")


def test_a_second_export_replaces_the_first(started):
    work = started.work("faster-core")
    work.write({"engine/core.py": numbered(80, _30="thirty", _31="31")})
    work.git("commit", "--quiet", "--all", "--amend", "-m", "[Kernel] Faster heart\n\nIt is slow.")
    assert started.types("export", "vllm/faster-core", "--check")[0] == 1
    assert [file.name for file in started.series("vllm/faster-core").glob("*.patch")] == ["0001-kernel-faster-core.patch"]
    assert started.types("export", "vllm/faster-core")[0] == 0
    assert [file.name for file in started.series("vllm/faster-core").glob("*.patch")] == ["0001-kernel-faster-heart.patch"]
    assert started.types("export", "vllm/faster-core", "--check")[0] == 0
    assert started.types("check", "--apply")[0] == 0


def test_uncommitted_changes_are_not_exported_but_named(started):
    started.work("faster-core").write({"engine/other.py": "x\n", "new.py": "x\n"})
    code, _, err = started.types("export", "vllm/faster-core")
    assert code == 1
    assert "has changes that are not committed" in err
    assert "\n  engine/other.py\n  new.py\n" in err


def test_a_stale_patch_fails_the_export_check_and_the_series_check(started):
    (patch,) = started.series("vllm/faster-core").glob("*.patch")
    patch.write_bytes(patch.read_bytes().replace(b"It is slow.", b"It is very slow."))
    code, _, err = started.types("export", "vllm/faster-core", "--check")
    assert code == 1
    assert "0001-kernel-faster-core.patch differs at line 6" in err
    code, out, _ = started.types("check", "--apply")
    assert code == 1
    assert "gives commit" in out
    assert "upstream/lock.toml has" in out


def test_a_tip_that_is_not_the_locked_one_is_loud_until_the_lock_is_updated(started):
    (patch,) = started.series("vllm/faster-core").glob("*.patch")
    patch.write_bytes(patch.read_bytes().replace(b"It is slow.", b"It is very slow."))
    code, _, err = started.types("apply", "vllm/faster-core")
    assert code == 1
    assert "If that was meant" in err
    assert started.types("apply", "vllm/faster-core", "--update-lock")[0] == 0
    assert started.types("apply", "vllm/faster-core")[0] == 0
    assert started.types("check", "--apply")[0] == 0


def test_a_pin_without_a_port_gets_the_bench_patches_and_a_warning(started):
    code, _, err = started.types("apply", "vllm/faster-core", "--pin", "head")
    assert code == 0
    assert "has no port to vllm-0.33.0; trying its patches for 0.24.0" in err


def test_a_checkout_of_one_s_own_can_be_exported_from_and_applied_to(started, tmp_path):
    own = Repository(tmp_path / "own")
    own.git("clone", "--quiet", str(started.mirror), ".")
    own.git("checkout", "--quiet", "-b", "topic", "v0.24.0")
    assert started.types("apply", "vllm/faster-core", "--tree", str(own.path))[0] == 0
    assert own.git("log", "--format=%s", "v0.24.0..topic") == "[Kernel] Faster core"
    assert started.types("export", "vllm/faster-core", "--check", "--tree", str(own.path))[0] == 0
    own.commit("[Misc] More\n\nText.", {"a": "1\n"})
    assert started.types("export", "vllm/faster-core", "--tree", str(own.path))[0] == 0
    assert len(list(started.series("vllm/faster-core").glob("*.patch"))) == 2


def test_a_checkout_that_does_not_stand_on_the_pin_is_refused(started, tmp_path):
    own = Repository(tmp_path / "own")
    own.git("init", "--quiet")
    own.commit("something else", {"a": "1\n"})
    code, _, err = started.types("export", "vllm/faster-core", "--tree", str(own.path))
    assert code == 1
    assert "does not stand on vllm-0.24.0 (tag v0.24.0)" in err


def test_a_series_without_a_work_tree_says_how_to_get_one(started):
    shutil.rmtree(started.work("faster-core").path)
    code, _, err = started.types("export", "vllm/faster-core")
    assert code == 1
    assert "`nox -s apply -- vllm/faster-core --work` makes one" in err
    assert started.types("apply", "vllm/faster-core", "--work")[0] == 0
    assert started.work("faster-core").state()[2]["engine/core.py"] == numbered(80, _30="thirty").encode()
    assert started.types("export", "vllm/faster-core", "--check")[0] == 0


def test_one_broken_series_does_not_hide_the_findings_of_others(started):
    started.series("vllm/broken").mkdir()
    (started.series("vllm/broken") / "series.toml").write_text("title = 1\n")
    code, out, _ = started.types("check")
    assert code == 1
    assert "vllm/broken: error: series.toml: " in out
    assert "field 'title' is malformed" in out
    assert "vllm/faster-core: to do: series.toml: why is empty" in out


def test_a_locked_tip_of_a_series_that_is_gone_is_named(started):
    shutil.rmtree(started.series("vllm/faster-core"))
    code, out, _ = started.types("check")
    assert code == 1
    assert "vllm/faster-core: error: upstream/lock.toml: has a tip of it, but there is no such series" in out


def test_an_unknown_series_is_a_usage_error_with_the_nearest_name(started):
    for command in ("apply", "export", "check"):
        code, out, err = started.types(command, "vllm/faster-cor")
        assert code == 2
        assert out == ""
        assert "Did you mean 'vllm/faster-core'?" in err


def test_an_unknown_pin_is_a_usage_error_with_the_nearest_name(started):
    for command in ("apply", "export"):
        code, _, err = started.types(command, "vllm/faster-core", "--pin", "0.33")
        assert code == 2
        assert "Did you mean '0.33.0'?" in err


def test_an_engine_that_is_unknown_is_a_usage_error(person):
    code, _, err = person.types("new", "vlm/faster-core")
    assert code == 2
    assert "Did you mean 'vllm'?" in err
