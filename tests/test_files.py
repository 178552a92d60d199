"""Files are whole or absent: replaced in one step, kept when the disk is full."""

from __future__ import annotations

import resource

import pytest

from harness.errors import EvidenceError
from harness.files import write_atomically


def test_content_is_replaced_and_nothing_else_is_left(tmp_path):
    file = tmp_path / "deep" / "evidence.json"
    write_atomically(file, "old", EvidenceError)
    write_atomically(file, "néw", EvidenceError)
    assert file.read_text(encoding="utf-8") == "néw"
    assert [one.name for one in file.parent.iterdir()] == ["evidence.json"]
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_full_disk_keeps_the_old_file_whole(tmp_path):
    file = tmp_path / "evidence.json"
    write_atomically(file, "old", EvidenceError)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(EvidenceError, match=r"cannot write .*evidence\.json.*Nothing that was there is lost"):
            write_atomically(file, "x" * 5000, EvidenceError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["evidence.json"]


def test_a_folder_that_is_a_file_is_a_clear_error(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(EvidenceError, match="cannot write"):
        write_atomically(tmp_path / "taken" / "evidence.json", "x", EvidenceError)
