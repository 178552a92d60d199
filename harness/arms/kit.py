"""An unpacked offline kit as the source of environments: what a GPU host without a network has instead of an index."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bundle import unpack
from harness.errors import EnvironmentSetupError
from harness.paths import Paths
from harness.pins.download import sha256_of
from harness.pins.model import Pin, Runtime

__all__ = ["KIT_VARIABLE", "Kit", "adopt_archives", "copy_wheel", "file_hashes", "find_kit", "make_kit_venv"]

# Names the folder that `unpack.py --into` filled.
KIT_VARIABLE = "UPKERNEL_KIT"
HASHES = "hashes.json"


@dataclass(frozen=True, slots=True)
class Kit:
    """A kit's folder on this host and its description (kit.json)."""

    folder: Path
    description: Mapping[str, Any]

    @property
    def digest(self) -> str:
        return str(self.description["kit"])

    def made(self, pin: Pin) -> Mapping[str, Any]:
        """What unpack.py wrote about the engine's environment: its Python and distributions ("NAME-VERSION").

        Raises EnvironmentSetupError when the kit is for another pin, or the parts with this engine are not all unpacked.
        """
        entry = self.description["engines"].get(pin.engine)
        if entry is None or entry["version"] != pin.version:
            has = ", ".join(f"{name} {one['version']}" for name, one in self.description["engines"].items())
            raise EnvironmentSetupError(
                f"the kit in {self.folder} has {has}, and not {pin.name}. Make one with `nox -s bundle`, or unset "
                f"{KIT_VARIABLE} where an index can be reached."
            )
        mark = self.folder / "envs" / pin.engine / "complete.json"
        try:
            made: Mapping[str, Any] = json.loads(mark.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EnvironmentSetupError(
                f"the kit in {self.folder} has no complete environment of {pin.engine} ({mark} cannot be read): unpack its "
                f"other parts; `python3 unpack.py --into {self.folder}` says which are missing"
            ) from error
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        if self.description["python"] != here:
            raise EnvironmentSetupError(
                f"the kit in {self.folder} is for Python {self.description['python']}, this is {here}: run the harness with "
                f"{self.folder}/envs/harness/bin/python"
            )
        return made

    def lib(self, runtime: Runtime) -> Path:
        """The files of an engine's wheel, as far as the kit has them. Raises EnvironmentSetupError when it has none."""
        folder = self.folder / "dists" / f"{runtime.distribution}-{runtime.version}" / "lib"
        if not folder.is_dir():
            raise EnvironmentSetupError(f"the kit in {self.folder} has no {runtime.distribution} {runtime.version}")
        return folder


def find_kit() -> Kit | None:
    """The kit that UPKERNEL_KIT names; None where it is not set. Raises EnvironmentSetupError for what is no unpacked kit."""
    named = os.environ.get(KIT_VARIABLE)
    if not named:
        return None
    folder = Path(named).expanduser().resolve()
    try:
        description = json.loads((folder / "kit.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentSetupError(
            f"{KIT_VARIABLE}={named} names no unpacked kit ({error}). Unpack one: python3 unpack.py part-*.tar.xz --into DIR"
        ) from error
    return Kit(folder, description)


def adopt_archives(kit: Kit, paths: Paths) -> None:
    """Put the kit's source archives where the harness looks for them; their hashes are checked at each use, as always."""
    for archive in sorted((kit.folder / "archives").glob("[!.]*")):
        target = paths.archives / archive.name
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(archive, temporary)
        temporary.replace(target)


def make_kit_venv(prefix: Path, kit: Kit, pin: Pin, runtime: Runtime) -> Path:
    """A virtual environment over the Python that unpacked the kit, with all of the engine's distributions but the engine.

    Returns its python. Raises EnvironmentSetupError with what that Python said.
    """
    made = kit.made(pin)
    engine = f"{runtime.distribution}-{runtime.version}"
    others = [name for name in made["distributions"] if name != engine]
    command = [made["python"], "-I", unpack.__file__, "--into", str(kit.folder), "--arm", str(prefix), *others]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise EnvironmentSetupError(
            f"the Python that unpacked the kit, {made['python']}, cannot be started ({error.strerror}). Unpack it again."
        ) from error
    if ran.returncode:
        said = (ran.stderr or ran.stdout).strip()[-1500:]
        raise EnvironmentSetupError(f"{prefix} could not be made of {kit.folder}:\n{said}")
    return prefix / "bin" / "python"


def copy_wheel(kit: Kit, runtime: Runtime, target: Path) -> None:
    """The engine's wheel as far as the kit has it, hard-linked where the file system can, and the sha256 of each file.

    A kit leaves files out and blanks machine code of other GPUs, so the wheel's own RECORD does not describe it.
    """
    unpack.link_tree(kit.lib(runtime), target)
    hashes = {str(path.relative_to(target)): sha256_of(path) for path in sorted(target.rglob("*")) if path.is_file()}
    (target / HASHES).write_text(json.dumps(hashes), encoding="utf-8")


def file_hashes(wheel: Path) -> Mapping[str, str] | None:
    """What copy_wheel wrote, path -> sha256; None for a whole wheel."""
    file = wheel / HASHES
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
