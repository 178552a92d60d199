from __future__ import annotations

import gzip
import os
import stat
import tarfile

import pytest

from harness.errors import ArchiveError
from harness.trees.archive import Member, is_generated, members, unpack


@pytest.fixture
def refused(tmp_path, sdist):
    """The complaint about an sdist with these entries after a harmless first one."""

    def read(*bad: tuple[tarfile.TarInfo, bytes]) -> str:
        good = (tarfile.TarInfo("demo-1.0/good.py"), b"good")
        archive = sdist(tmp_path / "demo-1.0.tar.gz", [good, *bad])
        with pytest.raises(ArchiveError) as caught:
            list(members(archive))
        assert str(archive) in str(caught.value)
        return str(caught.value)

    return read


def test_files_modes_and_links_of_an_sdist(tmp_path, sdist, tar_entry):
    archive = sdist(
        tmp_path / "demo-1.0.tar.gz",
        [
            (tar_entry("demo-1.0", tarfile.DIRTYPE), b""),
            (tar_entry("demo-1.0/a/run.sh", mode=0o775), b"run"),
            (tar_entry("./demo-1.0/a/data.bin", mode=0o664), b"\x00\xff"),
            (tar_entry("demo-1.0/b/link", tarfile.SYMTYPE, "../a/run.sh"), b""),
        ],
    )
    assert list(members(archive)) == [
        Member("a/run.sh", b"run", executable=True, link=False),
        Member("a/data.bin", b"\x00\xff", executable=False, link=False),
        Member("b/link", b"../a/run.sh", executable=False, link=True),
    ]


def test_files_of_a_wheel_have_one_mode(tmp_path, wheel):
    archive = wheel(tmp_path / "demo-1.0-py3-none-any.whl", {"demo/a.py": b"a"}, {"demo/a.py": stat.S_IFREG | 0o755})
    assert list(members(archive)) == [Member("demo/a.py", b"a", executable=False, link=False)]


@pytest.mark.parametrize("name", ["/etc/passwd", "//etc/passwd", "C:\\x", "C:x"])
def test_an_absolute_path_is_refused(refused, tar_entry, name):
    message = refused((tar_entry(name), b"x"))
    assert "is an absolute path" in message
    assert repr(name) in message


@pytest.mark.parametrize("name", ["../x", "demo-1.0/../../x", "demo-1.0/a/../b"])
def test_a_path_that_climbs_is_refused(refused, tar_entry, name):
    message = refused((tar_entry(name), b"x"))
    assert "leads out of the archive" in message
    assert repr(name) in message


@pytest.mark.parametrize("name", ["demo-1.0/.git/config", "demo-1.0/sub/.GIT"])
def test_a_file_in_gits_own_folder_is_refused(refused, tar_entry, name):
    assert "git's own folder" in refused((tar_entry(name), b"x"))


@pytest.mark.parametrize("name", ["demo-1.0/a\nM 100644 inline b", "demo-1.0/a\\b"])
def test_a_name_with_control_characters_is_refused(refused, tar_entry, name):
    assert "control character or a backslash" in refused((tar_entry(name), b"x"))


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a character device"),
        (tarfile.BLKTYPE, "a block device"),
        (tarfile.FIFOTYPE, "a named pipe"),
    ],
)
def test_devices_pipes_and_hard_links_are_refused(refused, tar_entry, kind, what):
    message = refused((tar_entry("demo-1.0/bad", kind, "demo-1.0/good.py"), b""))
    assert f"'demo-1.0/bad' is {what}" in message


@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "../..", "", "a/../../../x"])
def test_a_link_that_leaves_the_archive_is_refused(refused, tar_entry, target):
    assert "is a link that leaves the archive" in refused((tar_entry("demo-1.0/sub/link", tarfile.SYMTYPE, target), b""))


def test_a_link_into_gits_own_folder_is_refused(refused, tar_entry):
    assert "is a link into git's own folder" in refused((tar_entry("demo-1.0/link", tarfile.SYMTYPE, ".git/hooks"), b""))


def test_a_name_that_appears_twice_is_refused(refused, tar_entry):
    assert "'demo-1.0/good.py' appears twice" in refused((tar_entry("demo-1.0/good.py"), b"other"))


def test_a_file_below_a_link_is_refused(refused, tar_entry):
    message = refused((tar_entry("demo-1.0/l", tarfile.SYMTYPE, "good.py"), b""), (tar_entry("demo-1.0/l/x"), b"x"))
    assert "is both a file and a folder" in message


def test_a_file_where_a_folder_was_is_refused(refused, tar_entry):
    message = refused((tar_entry("demo-1.0/a/b"), b"x"), (tar_entry("demo-1.0/a"), b"x"))
    assert "is both a file and a folder" in message


def test_a_file_outside_the_single_folder_is_refused(refused, tar_entry):
    assert "lies outside the archive's folder 'demo-1.0'" in refused((tar_entry("other/x"), b"x"))


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_sdist_is_refused(tmp_path, sdist, keep):
    content = os.urandom(50_000)
    archive = sdist(tmp_path / "demo-1.0.tar.gz", [(tarfile.TarInfo("demo-1.0/a"), content)])
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(ArchiveError, match="is truncated or damaged"):
        list(members(archive))


def test_an_sdist_whose_tar_ends_early_inside_whole_gzip_is_refused(tmp_path, sdist):
    archive = sdist(tmp_path / "demo-1.0.tar.gz", [(tarfile.TarInfo(f"demo-1.0/{name}"), b"x" * 600) for name in "ab"])
    inner = gzip.decompress(archive.read_bytes())
    # header and content of the first file, nothing else
    archive.write_bytes(gzip.compress(inner[: 512 + 1024]))
    with pytest.raises(ArchiveError, match="no end of archive after 1536 bytes"):
        list(members(archive))


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path, sdist):
    archive = sdist(tmp_path / "demo-1.0.tar.gz", [(tarfile.TarInfo(f"demo-1.0/{name}"), b"x" * 600) for name in "ab"])
    inner = bytearray(gzip.decompress(archive.read_bytes()))
    inner[512 + 1024 + 150] ^= 0xFF  # the second header's checksum
    archive.write_bytes(gzip.compress(bytes(inner)))
    with pytest.raises(ArchiveError, match="no end of archive"):
        list(members(archive))


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_a_truncated_wheel_is_refused(tmp_path, wheel, keep):
    archive = wheel(tmp_path / "demo-1.0-py3-none-any.whl", {"demo/a.py": os.urandom(10_000)})
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(ArchiveError, match="is truncated or damaged"):
        list(members(archive))


def test_a_wheel_with_a_wrong_checksum_is_refused(tmp_path, wheel):
    archive = wheel(tmp_path / "demo-1.0-py3-none-any.whl", {"demo/a.py": b"content"})
    archive.write_bytes(archive.read_bytes().replace(b"content", b"CONTENT"))
    with pytest.raises(ArchiveError, match="CRC"):
        list(members(archive))


@pytest.mark.parametrize(
    ("name", "mode", "why"),
    [
        ("../x", stat.S_IFREG | 0o644, "leads out of the archive"),
        ("/x", stat.S_IFREG | 0o644, "is an absolute path"),
        ("demo/link", stat.S_IFLNK | 0o777, "is a link or a special file"),
        ("demo/pipe", stat.S_IFIFO | 0o644, "is a link or a special file"),
    ],
)
def test_bad_members_of_a_wheel_are_refused(tmp_path, wheel, name, mode, why):
    archive = wheel(tmp_path / "demo-1.0-py3-none-any.whl", {name: b"x"}, {name: mode})
    with pytest.raises(ArchiveError) as caught:
        list(members(archive))
    assert why in str(caught.value)
    assert repr(name) in str(caught.value)


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_a_wheel_with_a_name_twice_is_refused(tmp_path, wheel):
    import zipfile

    archive = wheel(tmp_path / "demo-1.0-py3-none-any.whl", {"demo/a.py": b"x"})
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("demo/a.py", b"y")
    with pytest.raises(ArchiveError, match=r"'demo/a\.py' appears twice"):
        list(members(archive))


@pytest.mark.parametrize(
    "path",
    [
        "PKG-INFO",
        "setup.cfg",
        "demo.egg-info/SOURCES.txt",
        "demo-1.0.dist-info/RECORD",
        "demo/_version.py",
        "demo/_build_meta.py",
        "demo/_C.abi3.so",
        "demo/deep/er/x.so",
    ],
)
def test_what_packaging_adds_is_left_out(path):
    assert is_generated(path)


@pytest.mark.parametrize(
    "path",
    ["tests/plugins/setup.cfg", "demo/a/_version.py", "demo/version.py", "demo/x.so.txt", "demo/egg-info.py", "_version.py"],
)
def test_what_upstream_has_is_kept(path):
    assert not is_generated(path)


def test_unpack_writes_the_files(tmp_path, sdist, tar_entry):
    link = tar_entry("demo-1.0/link", tarfile.SYMTYPE, "a/run.sh")
    archive = sdist(tmp_path / "demo-1.0.tar.gz", [(link, b""), (tar_entry("demo-1.0/a/run.sh", mode=0o755), b"run")])
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "link").read_bytes() == b"run"
    assert os.access(tmp_path / "out" / "a" / "run.sh", os.X_OK)


def test_unpack_of_a_bad_archive_leaves_nothing(tmp_path, sdist, tar_entry):
    archive = sdist(tmp_path / "demo-1.0.tar.gz", [(tar_entry("demo-1.0/a"), b"x"), (tar_entry("demo-1.0/../../b"), b"x")])
    with pytest.raises(ArchiveError):
        unpack(archive, tmp_path / "out")
    assert [one.name for one in tmp_path.iterdir()] == ["demo-1.0.tar.gz"]
