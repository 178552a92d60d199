"""Wheels, pins and libraries made up for the tests of kits."""

from __future__ import annotations

import hashlib
import random
import struct
import sys
import zipfile
from pathlib import Path

from harness.bundle.kit import Kit, Request, make_kit
from harness.bundle.target import Target
from harness.paths import Paths
from harness.pins.model import Archive, ArchiveKind, Pin, Runtime
from harness.progress import Progress
from harness.vocabulary import Device, Engine, PinRole

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes that no compressor makes smaller."""
    return random.Random(seed).randbytes(size)


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    requires: tuple[str, ...] = (),
    files: dict[str, bytes] | None = None,
    scripts: str = "",
) -> Path:
    """A pure wheel with METADATA; `files` are by path in the wheel."""
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {one}\n" for one in requires)
    content = {f"{stem}.dist-info/METADATA": metadata.encode(), **(files or {})}
    if scripts:
        content[f"{stem}.dist-info/entry_points.txt"] = f"[console_scripts]\n{scripts}\n".encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, data in content.items():
            archive.writestr(zipfile.ZipInfo(inner), data)
    return path


def make_pin(paths: Paths, engine: Engine, wheel: Path, requirements: str) -> Pin:
    """A pin whose wheel and source lie in the archives already, so that nothing asks an index."""
    _, version = wheel.name.split("-")[:2]
    project = wheel.name.split("-")[0].replace("_", "-")
    source = paths.archives / f"{project}-{version}.tar.gz"
    source.write_bytes(noise(3000, seed=len(project)))
    listed = paths.requirements / f"{engine}-cuda.txt"
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text(requirements, encoding="utf-8")
    runtime = Runtime(
        device=Device.CUDA, wheel=f"{project}=={version}", sha256=_sha256(wheel), requirements=listed.name,
        distribution=project, version=version,
    )  # fmt: skip
    archive = Archive(project=project, filename=source.name, sha256=_sha256(source), kind=ArchiveKind.SDIST, prefix="")
    return Pin(
        engine=engine, version=version, role=PinRole.BENCH, git_url="", tag="", commit=None, archive=archive, torch="2.11.0",
        requires=(), runtimes=(runtime,),
    )  # fmt: skip


def two_engines(paths: Paths, *, seed: int = 1) -> tuple[Pin, ...]:
    """Two engines that need `shared`, each needs its own version of `guide`; vllm has a library of 90,000 bytes."""
    archives = paths.archives
    make_wheel(archives, "shared", "1.0", files={"shared/__init__.py": b"VALUE = 41\n"})
    make_wheel(archives, "guide", "1.7", files={"guide.py": b"VERSION = 1.7\n"})
    make_wheel(archives, "guide", "0.7", files={"guide.py": b"VERSION = 0.7\n"})
    for name, version in (
        ("pytest", "9.1.1"),
        ("iniconfig", "2.3.0"),
        ("pluggy", "1.6.0"),
        ("tblib", "3.2.2"),
        ("pygments", "2.19.2"),
    ):
        make_wheel(archives, name, version, files={f"{name}.py": b"FROM = 'kit'\n"})
    for name, version in (("pytest-asyncio", "1.4.0"), ("pytest-timeout", "2.4.0")):
        make_wheel(archives, name, version)
    vllm = make_wheel(
        archives, "vllm", "0.24.0", requires=("shared", "guide>=1.7"), scripts="vllm = vllm.cli:main",
        files={
            "vllm/__init__.py": b"import guide, shared\n__version__ = '0.24.0'\n",
            "vllm/cli.py": b"def main():\n    import vllm\n    print('vllm', vllm.__version__, vllm.guide.VERSION)\n",
            "vllm/lib.so": noise(90_000, seed),
            "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": noise(70_000),
            "vllm/libx.a": noise(60_000),
        },
    )  # fmt: skip
    sglang = make_wheel(
        archives, "sglang", "0.5.14", requires=("shared", "guide<0.8"), files={"sglang.py": b"import guide, shared\n"},
    )  # fmt: skip
    return (
        make_pin(paths, Engine.VLLM, vllm, "shared==1.0\nguide==1.7\n"),
        make_pin(paths, Engine.SGLANG, sglang, "shared==1.0\nguide==0.7\n"),
    )


def make_paths(root: Path) -> Paths:
    paths = Paths(root=root / "checkout", state=root / "state")
    paths.archives.mkdir(parents=True, exist_ok=True)
    return paths


def kit_of(pins: tuple[Pin, ...], paths: Paths, output: Path, *, part_size: int = 60_000, **options: bool) -> Kit:
    """A kit for the Python that runs the tests."""
    request = Request(
        pins=pins, target=Target(PYTHON, "9.0", {}), part_size=part_size, output=output,
        with_tests=options.get("with_tests", False), with_sources=options.get("with_sources", False), thin=True,
        with_harness=options.get("with_harness", False),
    )  # fmt: skip
    return make_kit(request, paths, Progress(quiet=True))


def fat_binary(*code: tuple[int, int, bytes]) -> bytes:
    """A container of (kind, architecture, code) entries with the layout that nvcc writes (entry headers of 64 bytes)."""
    body = b""
    for kind, architecture, content in code:
        header = struct.pack("<HHIQ", kind, 0x101, 64, len(content))
        body += header + bytes(12) + struct.pack("<I", architecture) + bytes(32) + content
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
