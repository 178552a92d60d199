from __future__ import annotations

import hashlib
import random

import pytest

from harness.errors import ArchiveError, PinError
from harness.pins.index import fetch, fetch_unknown, fetch_wheel, find

NAME = "demo-1.0.tar.gz"
CONTENT = random.Random(1).randbytes(200_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def demo(index):
    index.files["demo", NAME] = CONTENT
    return index


def test_what_is_fetched_is_what_the_index_has(demo, paths, progress):
    path = fetch("demo", NAME, SHA256, paths, progress)
    assert path == paths.archives / NAME
    assert path.read_bytes() == CONTENT
    assert sorted(one.name for one in paths.archives.iterdir()) == [NAME, f"{NAME}.lock"]


def test_a_fetched_file_is_used_again_without_the_index(demo, paths, progress, monkeypatch):
    fetch("demo", NAME, SHA256, paths, progress)
    monkeypatch.setattr("harness.pins.index.read_settings", lambda: pytest.fail("the index was asked"))
    assert fetch("demo", NAME, SHA256, paths, progress).read_bytes() == CONTENT
    assert len(demo.requests) == 1


def test_a_file_that_was_changed_is_fetched_again_with_a_warning(demo, paths, progress, said):
    fetch("demo", NAME, SHA256, paths, progress).write_bytes(b"damaged")
    assert fetch("demo", NAME, SHA256, paths, progress).read_bytes() == CONTENT
    assert "warning: " in said.getvalue()
    assert SHA256 in said.getvalue()


def test_a_wrong_hash_names_expected_and_found_and_keeps_nothing(demo, paths, progress):
    demo.hashes = False
    with pytest.raises(ArchiveError) as caught:
        fetch("demo", NAME, "0" * 64, paths, progress)
    assert f"expected sha256 {'0' * 64}, found {SHA256}" in str(caught.value)
    assert "pins.toml" in str(caught.value)
    assert [one.name for one in paths.archives.iterdir()] == [f"{NAME}.lock"]


def test_an_index_that_promises_another_hash_is_refused_before_the_download(demo, paths, progress):
    demo.wrong_hashes = True
    with pytest.raises(ArchiveError, match=f"expected sha256 {SHA256}, but the index offers"):
        fetch("demo", NAME, SHA256, paths, progress)
    assert demo.requests == []


def test_a_download_that_breaks_off_goes_on_where_it_stopped(demo, paths, progress, said):
    demo.cuts = [70_000, 50_000]
    assert fetch("demo", NAME, SHA256, paths, progress).read_bytes() == CONTENT
    assert [asked for _, asked in demo.requests] == [None, "bytes=70000-", "bytes=120000-"]
    assert said.getvalue().count("warning: ") == 2


def test_a_server_without_ranges_starts_again(demo, paths, progress):
    demo.ranges = False
    demo.cuts = [70_000]
    assert fetch("demo", NAME, SHA256, paths, progress).read_bytes() == CONTENT


def test_a_download_that_never_ends_is_truncated_and_the_next_call_goes_on(demo, paths, progress):
    demo.cuts = [10_000] * 4
    with pytest.raises(ArchiveError, match=r"demo-1\.0\.tar\.gz is truncated: .* last after 40000 bytes"):
        fetch("demo", NAME, SHA256, paths, progress)
    assert not (paths.archives / NAME).exists()
    demo.requests.clear()
    assert fetch("demo", NAME, SHA256, paths, progress).read_bytes() == CONTENT
    assert [asked for _, asked in demo.requests] == ["bytes=40000-"]


@pytest.mark.parametrize("left", [b"x" * 70_000, b"x" * 200_000, b"x" * 300_000])
def test_a_remainder_of_something_else_is_thrown_away(demo, paths, progress, said, left):
    paths.archives.mkdir(parents=True)
    (paths.archives / f"{NAME}.part").write_bytes(left)
    assert fetch("demo", NAME, SHA256, paths, progress).read_bytes() == CONTENT
    assert "from the start" in said.getvalue()


def test_a_full_disk_is_said_to_be_one(demo, paths, progress, monkeypatch):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.pins.download.os.fsync", full)
    with pytest.raises(ArchiveError, match="the disk is full"):
        fetch("demo", NAME, SHA256, paths, progress)
    assert not (paths.archives / NAME).exists()


def test_an_unknown_file_offers_the_nearest(demo, paths, progress):
    with pytest.raises(PinError, match=r"demo has no file demo-1\.1\.tar\.gz on .*Did you mean 'demo-1\.0\.tar\.gz'"):
        fetch("demo", "demo-1.1.tar.gz", SHA256, paths, progress)


def test_without_a_network_the_message_names_the_index(settings_for):
    with pytest.raises(PinError) as caught:
        find("demo", settings=settings_for("http://127.0.0.1:9/simple/"))
    assert "No file of demo was found on http://127.0.0.1:9/simple/" in str(caught.value)
    assert "ConnectError" in str(caught.value)
    assert "pip config list" in str(caught.value)


def test_a_password_in_the_index_url_is_not_shown(settings_for):
    with pytest.raises(PinError) as caught:
        find("demo", settings=settings_for("http://user:secret@127.0.0.1:9/simple/"))
    assert "secret" not in str(caught.value)


def test_an_unknown_project_is_told_from_a_dead_network(demo, settings_for, caplog):
    with pytest.raises(PinError, match="404"):
        find("nothing", settings=settings_for(demo.url))
    assert caplog.text == ""  # said once, by us


def test_one_dead_index_hides_no_other(demo, settings_for):
    (found,) = find("demo", settings=settings_for("http://127.0.0.1:9/simple/", demo.url))
    assert (found.filename, found.version, found.sha256) == (NAME, "1.0", SHA256)


def test_find_links_with_a_missing_folder(tmp_path, settings_for):
    (tmp_path / NAME).write_bytes(CONTENT)
    (found,) = find("demo", settings=settings_for(find_links=(str(tmp_path / "missing"), str(tmp_path))))
    assert (found.filename, found.sha256) == (NAME, None)


def test_a_file_from_find_links_is_fetched_and_checked(tmp_path, paths, progress, settings_for, monkeypatch):
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / NAME).write_bytes(CONTENT)
    monkeypatch.setattr("harness.pins.index.read_settings", lambda: settings_for(find_links=(str(folder),)))
    assert fetch("demo", NAME, SHA256, paths, progress).read_bytes() == CONTENT


def test_files_for_other_pythons_are_found_and_the_newest_version_comes_first(index, settings_for):
    for name in ("demo-1.9.tar.gz", "demo-1.10-cp39-cp39-win_amd64.whl", "demo-1.2.tar.gz"):
        index.files["demo", name] = b"x"
    assert [one.version for one in find("demo", settings=settings_for(index.url))] == ["1.10", "1.9", "1.2"]


def test_the_hash_chooses_among_the_wheels_of_a_version(index, paths, progress):
    for platform in ("aarch64", "x86_64"):
        index.files["demo-cpu", f"demo_cpu-1.0-cp38-abi3-linux_{platform}.whl"] = platform.encode()
    sha256 = hashlib.sha256(b"x86_64").hexdigest()
    path = fetch_wheel("demo-cpu==1.0", sha256, paths, progress)
    assert path.name == "demo_cpu-1.0-cp38-abi3-linux_x86_64.whl"
    assert path.read_bytes() == b"x86_64"
    index.files.clear()
    assert fetch_wheel("demo-cpu==1.0", sha256, paths, progress) == path


def test_a_wheel_with_no_such_hash_lists_what_there_is(index, paths, progress):
    index.files["demo-cpu", "demo_cpu-1.0-py3-none-any.whl"] = b"x"
    with pytest.raises(PinError, match=r"demo_cpu-1\.0-py3-none-any\.whl sha256 " + hashlib.sha256(b"x").hexdigest()):
        fetch_wheel("demo-cpu==1.0", "0" * 64, paths, progress)


def test_the_hash_of_a_file_is_found_where_the_index_has_none(demo, paths, progress, settings_for):
    demo.hashes = False
    (found,) = find("demo", settings=settings_for(demo.url))
    path, sha256 = fetch_unknown(found, paths, progress)
    assert (path.read_bytes(), sha256) == (CONTENT, SHA256)
