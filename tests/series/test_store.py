"""A kill at any moment of an export leaves all old patches or all new ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import SeriesError
from harness.series.reader import read_series
from harness.series.store import PatchFile, finish_export, write_patches

ROOT = Path(__file__).parents[2]
OLD = {"0001-a.patch": b"old a", "0002-b.patch": b"old b", "0003-c.patch": b"old c"}
NEW = {"0001-a.patch": b"new a", "0002-b.patch": b"old b", "0004-d.patch": b"new d"}

# Runs an export and kills itself (SIGKILL: no handler, no clean-up) before its N-th change of the file system.
KILLED = """
import os, pathlib, shutil, signal, sys
from harness.series.store import PatchFile, write_patches

left = int(sys.argv[2])

def deadly(function):
    def call(*arguments, **words):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **words)
    return call

for name in ("open", "rename", "replace", "unlink"):
    setattr(pathlib.Path, name, deadly(getattr(pathlib.Path, name)))
for name in ("fsync", "rmdir"):
    setattr(os, name, deadly(getattr(os, name)))
shutil.rmtree = deadly(shutil.rmtree)
new = {new!r}
write_patches(pathlib.Path(sys.argv[1]), [PatchFile(*one) for one in new.items()])
"""


def files(directory):
    return {file.name: file.read_bytes() for file in directory.glob("*.patch")}


def fill(directory, content):
    directory.mkdir()
    for name, data in content.items():
        (directory / name).write_bytes(data)


def killed_export(directory, moment):
    """Whether the process was killed (else it reached its end)."""
    command = [sys.executable, "-c", KILLED.replace("{new!r}", repr(NEW)), str(directory), str(moment)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, capture_output=True)
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr
    return done.returncode != 0


def test_a_kill_at_any_moment_leaves_old_or_new(tmp_path):
    outcomes = []
    moment = 0
    while True:
        directory = tmp_path / str(moment)
        fill(directory, OLD)
        killed = killed_export(directory, moment)
        finish_export(directory)
        assert files(directory) in (OLD, NEW)
        outcomes.append(files(directory))
        # the next export is not bothered by what the dead one left
        write_patches(directory, [PatchFile(*one) for one in NEW.items()])
        assert sorted(path.name for path in directory.iterdir()) == sorted(NEW)
        assert files(directory) == NEW
        if not killed:
            break
        moment += 1
    assert OLD in outcomes
    assert outcomes.count(NEW) > 3


def test_reading_a_series_finishes_an_export_that_was_killed(make_series, paths):
    directory = make_series(patches=OLD).directory
    moment = 0
    while not (directory / ".export-ready").is_dir():
        assert killed_export(directory, moment)
        moment += 1
    assert [patch.name for patch in read_series(paths, "vllm/x").patches] == sorted(NEW)


def test_a_full_disk_leaves_the_old_patches(tmp_path, monkeypatch):
    fill(tmp_path / "x", OLD)

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SeriesError, match="No space left on device; the old ones are unchanged"):
        write_patches(tmp_path / "x", [PatchFile(*one) for one in NEW.items()])
    assert {path.name for path in (tmp_path / "x").iterdir()} == set(OLD)
    assert files(tmp_path / "x") == OLD


def test_an_unchanged_export_touches_nothing(tmp_path):
    fill(tmp_path / "x", OLD)
    before = {file.name: file.stat() for file in (tmp_path / "x").iterdir()}
    write_patches(tmp_path / "x", [PatchFile(*one) for one in OLD.items()])
    assert {file.name: file.stat() for file in (tmp_path / "x").iterdir()} == before
