from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile

import pytest

from harness.errors import ArchiveError, PinError, UnknownPinError
from harness.pins.adding import add_pin, choose_archive, insert_pin, read_requirements
from harness.pins.index import Found
from harness.pins.reader import read_pins
from harness.vocabulary import Engine, PinRole

METADATA = """\
Metadata-Version: 2.4
Name: {name}
Version: {version}
Requires-Dist: torch=={torch}
Requires-Dist: numpy
Requires-Dist: FlashInfer_Python[cu13]==0.6.12
Requires-Dist: flashinfer-python==9.9; extra == "other"
Requires-Dist: vllm-gguf-plugin>=0.0.2; extra == "extra-quant"

Long text.
"""

PINS = """\
# A comment at the top.

# ---- vLLM

[vllm."1.0"]
role = "bench" # why it is
git = "https://example.org/vllm"
tag = "v1.0"
torch = "2.11.0"
requires = []

[vllm."1.0".archive]
project = "vllm"
file = "vllm-1.0.tar.gz"
sha256 = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

# ---- SGLang

[sglang."0.5"]
role = "head"
git = "https://example.org/sglang"
tag = "v0.5"
torch = "2.12.0"
requires = []

[sglang."0.5".archive]
project = "sglang"
file = "sglang-0.5-cp312-cp312-manylinux_2_34_x86_64.whl"
sha256 = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
prefix = "python/"
"""


def sdist(name: str, version: str, metadata: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        # a nested one first: only the archive's own counts
        for path, text in ((f"{name}-{version}/sub/PKG-INFO", "Name: wrong\n"), (f"{name}-{version}/PKG-INFO", metadata)):
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def wheel(name: str, version: str, metadata: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
    return buffer.getvalue()


@pytest.fixture
def pins_file(paths):
    paths.pins_file.parent.mkdir(parents=True)
    paths.pins_file.write_text(PINS, encoding="utf-8")
    return paths.pins_file


def test_a_release_is_added_with_hash_torch_and_requirement(index, paths, pins_file, progress):
    content = sdist("vllm", "1.1", METADATA.format(name="vllm", version="1.1", torch="2.12.0"))
    index.files["vllm", "vllm-1.1.tar.gz"] = content
    add_pin(paths, Engine.VLLM, "1.1", progress)
    pin = read_pins(pins_file).find(Engine.VLLM, "1.1")
    assert (pin.role, pin.git_url, pin.tag, pin.torch) == (PinRole.EXTRA, "https://example.org/vllm", "v1.1", "2.12.0")
    assert pin.requires == ("flashinfer-python[cu13]==0.6.12",)
    assert (pin.archive.filename, pin.archive.sha256) == ("vllm-1.1.tar.gz", hashlib.sha256(content).hexdigest())


def test_the_rest_of_the_file_stays_as_it_is(index, paths, pins_file, progress):
    index.files["vllm", "vllm-1.1.tar.gz"] = sdist("vllm", "1.1", METADATA.format(name="vllm", version="1.1", torch="2.12.0"))
    add_pin(paths, Engine.VLLM, "1.1", progress)
    text = pins_file.read_text(encoding="utf-8")
    before, after = PINS.split("\n# ---- SGLang")
    assert text.startswith(before)
    assert text.endswith("\n# ---- SGLang" + after)


def test_sglang_is_its_cp312_wheel_under_python(index, paths, pins_file, progress):
    metadata = METADATA.format(name="sglang", version="0.6", torch="2.13.0+cu130")
    for tag in ("cp311-cp311-manylinux_2_34_x86_64", "cp312-cp312-manylinux_2_34_aarch64", "cp312-cp312-manylinux_2_34_x86_64"):
        index.files["sglang", f"sglang-0.6-{tag}.whl"] = wheel("sglang", "0.6", metadata)
    pin = add_pin(paths, Engine.SGLANG, "0.6", progress)
    assert pin.archive.filename == "sglang-0.6-cp312-cp312-manylinux_2_34_x86_64.whl"
    assert (pin.archive.prefix, pin.torch) == ("python/", "2.13.0")


def test_the_hash_is_computed_where_the_index_gives_none(index, paths, pins_file, progress):
    index.hashes = False
    content = sdist("vllm", "1.1", METADATA.format(name="vllm", version="1.1", torch="2.12.0"))
    index.files["vllm", "vllm-1.1.tar.gz"] = content
    assert add_pin(paths, Engine.VLLM, "1.1", progress).archive.sha256 == hashlib.sha256(content).hexdigest()


def test_a_release_without_a_torch_takes_the_heads_and_says_so(index, paths, pins_file, progress, said):
    index.files["sglang", "sglang-0.6-cp312-cp312-manylinux_2_34_x86_64.whl"] = wheel("sglang", "0.6", "Name: sglang\n")
    assert add_pin(paths, Engine.SGLANG, "0.6", progress).torch == "2.12.0"
    assert "2.12.0 of sglang-0.5 is recorded" in said.getvalue()


def test_a_release_without_a_torch_and_no_head_asks_for_one(index, paths, pins_file, progress):
    index.files["vllm", "vllm-1.1.tar.gz"] = sdist("vllm", "1.1", "Name: vllm\n")
    with pytest.raises(PinError, match="--torch VERSION"):
        add_pin(paths, Engine.VLLM, "1.1", progress)
    assert pins_file.read_text(encoding="utf-8") == PINS
    assert add_pin(paths, Engine.VLLM, "1.1", progress, torch="2.14.0").torch == "2.14.0"


def test_a_pin_that_exists_is_not_added_twice(paths, pins_file, progress):
    with pytest.raises(PinError, match=r"vllm 1\.0 is pinned already"):
        add_pin(paths, Engine.VLLM, "1.0", progress)


def found(version: str, filename: str) -> Found:
    return Found("vllm", version, filename, "https://example.org", "a" * 64, yanked=False)


def test_an_unknown_version_offers_its_neighbours():
    files = tuple(found(version, f"vllm-{version}.tar.gz") for version in ("0.9.0", "0.10.0", "0.11.0", "0.11.1", "0.12.0"))
    with pytest.raises(UnknownPinError, match=r"vllm 0\.11\.2 is not on the index. The nearest are 0\.11\.0, 0\.11\.1, 0\.12"):
        choose_archive(Engine.VLLM, "0.11.2", files)


def test_a_release_without_an_sdist_is_refused():
    with pytest.raises(PinError, match=r"has no sdist .* only: vllm-1\.0-py3-none-any\.whl"):
        choose_archive(Engine.VLLM, "1.0", (found("1.0", "vllm-1.0-py3-none-any.whl"),))


def test_metadata_that_cannot_be_read_is_said(tmp_path):
    archive = tmp_path / "vllm-1.0.tar.gz"
    archive.write_bytes(sdist("vllm", "1.0", METADATA)[:100])
    with pytest.raises(ArchiveError, match="no readable metadata"):
        read_requirements(archive)


def test_a_block_that_would_spoil_the_file_is_not_written(pins_file):
    with pytest.raises(PinError):
        insert_pin(pins_file, Engine.VLLM, '[vllm."2.0"]\nrole = "bench"\n')
    assert pins_file.read_text(encoding="utf-8") == PINS
    assert [one.name for one in pins_file.parent.iterdir()] == ["pins.toml"]
