"""Units packed into parts no larger than asked, each one readable without the others."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.bundle.units import Unit, compress, header_stream
from harness.errors import BundleError, UsageError
from harness.files import write_atomically

__all__ = ["END", "PartPlan", "part_name", "plan_parts", "write_parts"]

PartPlan = list[Unit]
# Two empty blocks end a tar archive, so that `tar -xJf` reads a part too.
END = compress(bytes(1024))
HEADER_RESERVE = 1_000_000  # bytes of a part kept for its description


def part_name(number: int) -> str:
    return f"part-{number}.tar.xz"


def plan_parts(units: Sequence[Unit], limit: int) -> list[PartPlan]:
    """Fill parts in order. `limit` is bytes for a whole part.

    Raises UsageError when one unit alone is larger.
    """
    room = limit - HEADER_RESERVE - len(END)
    largest = max((unit.size for unit in units), default=0)
    if largest > room:
        raise UsageError(
            f"--part-size is too small: one piece alone takes {largest / 1e6:.1f} MB, "
            f"ask for {(largest + HEADER_RESERVE) / 1e6 + 0.1:.0f}M or more"
        )
    plans: list[PartPlan] = []
    used = room + 1
    for unit in units:
        if used + unit.size > room:
            plans.append([])
            used = 0
        plans[-1].append(unit)
        used += unit.size
    return plans


def write_parts(output: Path, plans: Sequence[PartPlan], kit: Mapping[str, Any]) -> list[Path]:
    """Write part-1.tar.xz … and kit.json (with the parts' hashes); a part that is there and right is left alone.

    Raises BundleError when the disk is full.
    """
    description = json.dumps(kit, indent=1, sort_keys=True).encode()
    paths, hashes = [], {}
    for number, plan in enumerate(plans, start=1):
        part = {
            "kit": kit["kit"],
            "part": number,
            "of": len(plans),
            "payload": sum(unit.size for unit in plan) + len(END),
            "files": [file for unit in plan for file in unit.files],
        }
        head = header_stream([("kit.json", description), ("part.json", json.dumps(part, sort_keys=True).encode())])
        path = output / part_name(number)
        hashes[path.name] = _write_part(path, head, plan)
        paths.append(path)
    for old in output.glob("part-*.tar.xz"):
        if old not in paths:
            old.unlink()
    write_atomically(output / "kit.json", json.dumps({**kit, "sha256": hashes}, indent=1, sort_keys=True), BundleError)
    return paths


def _write_part(path: Path, head: bytes, plan: PartPlan) -> str:
    new = path.with_suffix(".new")
    try:
        with new.open("wb") as file:
            file.write(head)
            for unit in plan:
                with unit.stream.open("rb") as stream:
                    shutil.copyfileobj(stream, file)
            file.write(END)
        with new.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise BundleError(
            f"{path} cannot be written ({error.strerror}). Free space, or name another folder with --output."
        ) from error
    return digest
