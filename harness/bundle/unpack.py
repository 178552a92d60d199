"""Unpack a kit on a host without a network and make one environment for each engine; needs Python alone, and no pip.

  python3 unpack.py part-1.tar.xz part-2.tar.xz --into ~/kit     # all at once, or one call for each part, in any order
  python3 unpack.py --into ~/kit                                 # check that nothing is missing
  ~/kit/envs/vllm/bin/vllm --version

Run it with the Python whose packages (torch, triton) the engines are to use: the environments lie over it and see its packages,
and their own come first. Every file is checked against its SHA-256. An interrupted call is repeated as it was: what is whole is
not unpacked again. Exit codes: 0 the parts are good (more may be needed: it says which), 1 something is wrong, 2 usage.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import time
import venv
from collections.abc import Iterator, Sequence
from configparser import ConfigParser
from pathlib import Path
from typing import Any

__all__ = ["FORMAT", "UnpackError", "fill_environment", "link_tree", "main"]

FORMAT = 1
CHUNK = 1 << 20
STATE = ".unpacked"  # one empty file for each part that is done
MAGIC = b"\xfd7zXZ\x00"
# Tools that the engines call by name, taken from the host's environment when it is one.
HOST_TOOLS = ("ninja", "cmake")


class UnpackError(Exception):
    """A part is truncated, damaged, of another kit or missing, or the host does not fit the kit."""


# ---------------------------------------------------------------- parts


class Part:
    """One part, opened: its description of the whole kit (`kit`), of itself (`own`), and its members, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                head, consumed = _first_stream(file, path)
        except OSError as error:
            raise UnpackError(f"{path} cannot be read ({error.strerror}). Copy the part again.") from error
        try:
            members = {name: json.loads(content) for name, content in _members(head)}
            self.kit, self.own = members["kit.json"], members["part.json"]
            self.number, payload = int(self.own["part"]), int(self.own["payload"])
        except (KeyError, ValueError, tarfile.TarError) as error:
            raise UnpackError(f"{path} is no part of a kit: its description is missing ({error})") from error
        if self.kit.get("format") != FORMAT:
            raise UnpackError(
                f"{path} has format {self.kit.get('format')}, this unpack.py reads {FORMAT}. "
                "Use the unpack.py made with the kit."
            )
        if size != consumed + payload:
            what = "is truncated" if size < consumed + payload else "has bytes after its end"
            raise UnpackError(
                f"{path} (part {self.number}) {what}: {size} bytes, {consumed + payload} expected. Copy it again."
            )

    def extract(self, into: Path) -> int:
        """Write every file below `into`, each checked; returns the bytes written. Whole files that are there are kept."""
        described = iter(self.own["files"])
        written = 0
        try:
            with lzma.open(self.path) as raw, tarfile.open(fileobj=raw, mode="r|") as archive:
                for member in archive:
                    if member.name in {"kit.json", "part.json"}:
                        continue
                    file = next(described, None)
                    if file is None or file["member"] != member.name:
                        raise UnpackError(
                            f"{self.path} (part {self.number}) holds {member.name}, which its description does not"
                        )
                    stream = archive.extractfile(member)
                    written += _store(stream.read() if stream else b"", file, into, self)
        except (lzma.LZMAError, EOFError, tarfile.TarError) as error:
            raise UnpackError(f"{self.path} (part {self.number}) is damaged: {error}. Copy it again.") from error
        if (rest := next(described, None)) is not None:
            raise UnpackError(f"{self.path} (part {self.number}) ends before {rest['path']}. Copy it again.")
        return written


def _first_stream(file: Any, path: Path) -> tuple[bytes, int]:
    """The first xz stream of a file, unpacked, and how many bytes it takes."""
    unxz, head, read = lzma.LZMADecompressor(lzma.FORMAT_XZ), b"", 0
    while not unxz.eof:
        chunk = file.read(CHUNK)
        if not read and not chunk.startswith(MAGIC):
            raise UnpackError(f"{path} is no part of a kit: it does not begin like an xz file")
        if not chunk:
            raise UnpackError(f"{path} is truncated: it ends at byte {read}, inside its description. Copy it again.")
        read += len(chunk)
        try:
            head += unxz.decompress(chunk)
        except lzma.LZMAError as error:
            raise UnpackError(f"{path} is damaged in its description ({error}). Copy it again.") from error
    return head, read - len(unxz.unused_data)


def _members(raw: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while at < len(raw):
        info = tarfile.TarInfo.frombuf(raw[at : at + 512], "utf-8", "strict")
        yield info.name, raw[at + 512 : at + 512 + info.size]
        at += 512 + -(-info.size // 512) * 512


def _store(content: bytes, file: dict[str, Any], into: Path, part: Part) -> int:
    """Write one file, or one piece of a file that several parts may share."""
    target = into / file["path"]
    if into not in target.parents or ".." in Path(file["path"]).parts:
        raise UnpackError(f"{part.path} holds {file['path']}, which would land outside {into}; it is refused")
    if len(content) != file["length"]:
        raise UnpackError(
            f"{part.path} (part {part.number}): {file['path']} has {len(content)} bytes, {file['length']} expected"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.unpacking")
    if file["length"] == file["size"]:
        if hashlib.sha256(content).hexdigest() != file["sha256"]:
            raise UnpackError(f"{part.path} (part {part.number}): {file['path']} has the wrong SHA-256. Make the kit again.")
        temporary.write_bytes(content)
    else:
        if target.exists():
            return 0
        # Pieces find their place by offset, whatever order the parts come in; finish_pieces checks the whole.
        with temporary.open("r+b" if temporary.exists() else "w+b") as stream:
            stream.seek(file["offset"])
            stream.write(content)
        return len(content)
    temporary.chmod(file["mode"])
    temporary.replace(target)
    return len(content)


def finish_pieces(into: Path) -> None:
    """Put files that came in pieces in place, those of which every piece is there, and check them."""
    pieces: dict[str, list[dict[str, Any]]] = {}
    holders: dict[str, list[Path]] = {}
    for done in sorted((into / STATE).glob("part-*")):
        for piece in json.loads(done.read_text(encoding="utf-8")):
            pieces.setdefault(piece["path"], []).append(piece)
            holders.setdefault(piece["path"], []).append(done)
    for path, found in pieces.items():
        file, target = found[0], into / path
        temporary = target.with_name(f".{target.name}.unpacking")
        if target.exists() or sum(piece["length"] for piece in found) < file["size"]:
            continue
        with temporary.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != file["sha256"]:
            temporary.unlink()
            numbers = sorted({done.name.removeprefix("part-") for done in holders[path]})
            for done in holders[path]:
                done.unlink(missing_ok=True)
            raise UnpackError(f"{path} has the wrong SHA-256 once put together. Unpack part {', '.join(numbers)} again.")
        temporary.chmod(file["mode"])
        temporary.replace(target)


# ---------------------------------------------------------------- environments


def make_environment(kit: dict[str, Any], engine: str, into: Path, *, tests: bool) -> Path:
    """A virtual environment over the running Python with an engine's distributions; returns its folder."""
    prefix = into / "envs" / engine
    entry = kit["engines"][engine]
    mark = prefix / "complete.json"
    wanted = entry["distributions"] + (entry.get("tests", []) if tests else [])
    recipe = {"kit": kit["kit"], "python": sys.executable, "distributions": wanted}
    if mark.exists() and json.loads(mark.read_text()) == recipe:
        return prefix
    fill_environment(prefix, wanted, into)
    mark.write_text(json.dumps(recipe), encoding="utf-8")
    return prefix


def fill_environment(prefix: Path, distributions: Sequence[str], into: Path) -> None:
    """A virtual environment in `prefix` over the running Python, with these NAME-VERSION of the kit that lies in `into`."""
    shutil.rmtree(prefix, ignore_errors=True)
    venv.EnvBuilder(system_site_packages=True, with_pip=False, symlinks=True).create(prefix)
    python = prefix / "bin" / "python"
    packages = prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name in distributions:
        root = into / "dists" / name
        link_tree(root / "lib", packages)
        link_tree(root / "data", prefix)
        for script in (root / "bin").glob("*") if (root / "bin").is_dir() else ():
            _copy_script(script, prefix / "bin" / script.name, python)
    for info in packages.glob("*.dist-info"):
        (info / "INSTALLER").unlink(missing_ok=True)  # a link: the file of the distribution stays as it is
        (info / "INSTALLER").write_text("upkernel\n", encoding="utf-8")
        _write_commands(info / "entry_points.txt", prefix / "bin", python)
    _over_the_host(packages, prefix / "bin")


def link_tree(source: Path, target: Path) -> None:
    """Hard links where the file system has them, so that engines share what both need; copies elsewhere."""
    for folder, _, names in os.walk(source):
        below = target / os.path.relpath(folder, source)
        below.mkdir(parents=True, exist_ok=True)
        for name in names:
            new = below / name
            new.unlink(missing_ok=True)
            try:
                new.hardlink_to(Path(folder) / name)
            except OSError:
                shutil.copy2(Path(folder) / name, new)


def _copy_script(source: Path, target: Path, python: Path) -> None:
    content = source.read_bytes()
    if content.startswith(b"#!python"):
        _, _, rest = content.partition(b"\n")
        content = f"#!{python}\n".encode() + rest
    target.write_bytes(content)
    target.chmod(0o755)


def _write_commands(entry_points: Path, folder: Path, python: Path) -> None:
    if not entry_points.exists():
        return
    parser = ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names keep their case
    parser.read_string(entry_points.read_text(encoding="utf-8"))
    for name, value in parser.items("console_scripts") if parser.has_section("console_scripts") else ():
        match = re.match(r"\s*([\w.]+)\s*:\s*([\w.]+)", value)
        if match is None or "/" in name:
            continue
        first = match[2].split(".", maxsplit=1)[0]
        script = folder / name
        script.write_text(
            f"#!{python}\nimport sys\n\nfrom {match[1]} import {first}\n\n"
            f'if __name__ == "__main__":\n    sys.exit({match[2]}())\n',
            encoding="utf-8",
        )
        script.chmod(0o755)


def _over_the_host(packages: Path, folder: Path) -> None:
    """Let the environment see the packages of the running Python when that is itself a virtual environment.

    `--system-site-packages` reaches only the Python that a virtual environment was made from. addsitedir also reads the .pth
    files there, and appends, so that the environment's own packages come first.
    """
    if sys.prefix == sys.base_prefix:
        return
    hosts = [path for path in site.getsitepackages() if Path(path).is_dir() and Path(sys.prefix) in Path(path).parents]
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in hosts)
    (packages / "zz-host.pth").write_text(lines, encoding="utf-8")
    for tool in HOST_TOOLS:
        there = Path(sys.prefix) / "bin" / tool
        if there.exists() and not (folder / tool).exists():
            (folder / tool).symlink_to(there)


CHECK = """
import importlib.metadata as metadata, json, sys
found = {}
for name in json.load(sys.stdin):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


def check_host(kit: dict[str, Any], engine: str, prefix: Path, say: Any) -> list[str]:
    """What the host lacks of the distributions that the kit counts on, one sentence each.

    "==2.11.0" must be that release; "1.5" is what the host had when the kit was made: another one is told, and not refused.
    """
    wanted = kit["engines"][engine]["host"]
    result = subprocess.run(
        [prefix / "bin" / "python", "-I", "-c", CHECK],
        input=json.dumps(list(wanted)),
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise UnpackError(f"the Python of {prefix} does not start: {result.stderr.strip()[-500:]}")
    lacking = []
    for name, found in json.loads(result.stdout).items():
        exact = wanted[name].startswith("==")
        asked = wanted[name].removeprefix("==")
        if found is None:
            lacking.append(f"{engine}: {f'{name} {asked}'.strip()} is not installed")
        elif exact and found.partition("+")[0] != asked.partition("+")[0]:
            lacking.append(f"{engine}: {name} is {found}, the kit was made for {asked}")
        elif asked[:1].isdigit() and found != asked and not exact:
            say(f"{engine}: {name} is {found}, it was {asked} when the kit was made")
    return lacking


# ---------------------------------------------------------------- command


def unpack(paths: Sequence[Path], into: Path, engines: Sequence[str] | None, *, tests: bool, say: Any = print) -> None:
    """Unpack parts, then make the environments whose parts are all there."""
    start = time.monotonic()
    parts = [Part(path) for path in paths]
    kit = _one_kit(parts, into)
    if kit["python"] != f"{sys.version_info.major}.{sys.version_info.minor}":
        raise UnpackError(
            f"the kit is for Python {kit['python']}, this is {sys.version.split()[0]} ({sys.executable}). "
            f"Run unpack.py with the Python {kit['python']} that has torch, or make the kit with --python."
        )
    if tests and not any(entry.get("tests") for entry in kit["engines"].values()):
        raise UnpackError("the kit was made without --with-tests, so it has nothing to add for tests. Make it again with that.")
    unknown = sorted(set(engines or ()) - set(kit["engines"]))
    if unknown:
        raise UnpackError(f"the kit has no {', '.join(unknown)}; it has {', '.join(kit['engines'])}")
    (into / STATE).mkdir(parents=True, exist_ok=True)
    (into / "kit.json").write_text(json.dumps(kit), encoding="utf-8")
    for part in parts:
        done = into / STATE / f"part-{part.number}"
        if done.exists():
            say(f"part {part.number} of {len(kit['parts'])}: unpacked before")
            continue
        written = part.extract(into)
        pieces = [file for file in part.own["files"] if file["length"] != file["size"]]
        done.write_text(json.dumps(pieces), encoding="utf-8")
        say(f"part {part.number} of {len(kit['parts'])}: {written / 1e6:.0f} MB, {time.monotonic() - start:.1f} s")
    finish_pieces(into)
    _environments(kit, into, engines, tests=tests, strict=not paths, say=say)
    say(f"done in {time.monotonic() - start:.1f} s")


def _environments(
    kit: dict[str, Any], into: Path, engines: Sequence[str] | None, *, tests: bool, strict: bool, say: Any
) -> None:
    missing, lacking = {}, []
    for engine, entry in kit["engines"].items():
        if engines and engine not in engines:
            continue
        needed = [
            number for number, owners in enumerate(kit["parts"], start=1)
            if set(owners) & {*entry["distributions"], *(entry.get("tests", []) if tests else [])}
        ]  # fmt: skip
        absent = [number for number in needed if not (into / STATE / f"part-{number}").exists()]
        if absent:
            missing[engine] = absent
            continue
        prefix = make_environment(kit, engine, into, tests=tests)
        lacking += check_host(kit, engine, prefix, say)
        say(f"{engine} {entry['version']}: {prefix}".replace(" :", ":"))
    for engine, absent in missing.items():
        say(f"{engine}: still needs part {', '.join(map(str, absent))}")
    for archive in sorted((into / "archives").glob("*")):
        if not archive.name.startswith("."):
            say(f"source archive {archive}: link it into upstream/state/archives of a checkout, and trees are made from it")
    if lacking:
        raise UnpackError("the host does not have what the kit counts on:\n  " + "\n  ".join(lacking))
    if missing and strict:
        raise UnpackError(
            "parts are missing: " + "; ".join(f"{one} needs part {', '.join(map(str, of))}" for one, of in missing.items())
        )


def _one_kit(parts: Sequence[Part], into: Path) -> dict[str, Any]:
    """The kit that all parts, and what lies in `into`, belong to."""
    there = into / "kit.json"
    kit: dict[str, Any] | None = json.loads(there.read_text(encoding="utf-8")) if there.exists() else None
    first = f"as in {into}" if there.exists() else f"like {parts[0].path}" if parts else ""
    for part in parts:
        if kit is None:
            kit = part.kit
        elif part.kit["kit"] != kit["kit"]:
            raise UnpackError(
                f"{part.path} is part {part.number} of another kit: {part.kit['kit']}, and not {kit['kit']} {first}. "
                "Bring the parts of one kit, or unpack into a new folder."
            )
    if kit is None:
        raise UnpackError(f"no part is given and {into} holds no kit. Name the parts: unpack.py part-1.tar.xz --into {into}")
    return kit


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", type=Path, metavar="PART", help="parts of one kit")
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="folder on the host; parts of one kit share it")
    parser.add_argument(
        "--engines", nargs="+", metavar="ENGINE", help="make environments of these alone (default: all in the kit)"
    )
    parser.add_argument("--with-tests", action="store_true", help="add what the engines' own tests import, if the kit has it")
    # for the harness: an arm's environment has all of an engine's distributions but the engine, which comes from a tree
    parser.add_argument("--arm", nargs="+", metavar=("PREFIX", "DISTRIBUTION"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    try:
        if args.arm:
            fill_environment(Path(args.arm[0]), args.arm[1:], args.into.resolve())
            return 0
        unpack(args.parts, args.into.resolve(), args.engines, tests=args.with_tests)
    except UnpackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"error: {error.strerror or error} ({error.filename}). Run the same call again once that is mended.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
