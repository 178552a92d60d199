"""Blank the machine code of other GPUs inside a shared library, so that it compresses to nothing.

A library built by nvcc holds fat binaries: containers with one entry for each architecture, machine code (an ELF image) or
PTX. The driver reads the entries' headers and takes the one that fits the GPU; it has no use for the bytes of the others. Those
bytes are set to zero here and everything keeps its place, so no offset, symbol or section changes.

Layout (read from vLLM 0.24.0's and sglang-kernel 0.4.4's libraries: 1,221 entries, each inside the section
.nv_fatbin, sizes adding up to their containers'): a container starts with the 32-bit 0xBA55ED50, 16-bit
version 1, 16-bit header size 16, 64-bit size of its entries. An entry: 16-bit kind (1 PTX, 2 ELF), 16-bit
version, 32-bit header size, 64-bit size of its bytes, then at offset 28 the 32-bit architecture as in 90 for sm_90.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from harness.errors import BundleError

__all__ = ["Entry", "blank_other_architectures", "entries"]

MAGIC = struct.pack("<I", 0xBA55ED50)
CONTAINER = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHIQ")
ARCHITECTURE_AT = 28
PTX, ELF = 1, 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One architecture's code: bytes [start, start + size) of the library. `container` numbers the fat binaries."""

    container: int
    kind: int
    architecture: int
    start: int
    size: int


def entries(library: bytes | bytearray) -> Iterator[Entry]:
    """Every entry of every fat binary in a library.

    Raises BundleError when a container does not follow the layout above: nothing may be blanked by a guess.
    """
    at, container = library.find(MAGIC), 0
    while at >= 0:
        if at + CONTAINER.size > len(library):
            return
        _, version, header, size = CONTAINER.unpack_from(library, at)
        if version != 1 or header != CONTAINER.size or at + header + size > len(library):
            # these four bytes may be anything, an instruction's constant for one
            at = library.find(MAGIC, at + 4)
            continue
        place, end = at + header, at + header + size
        while place < end:
            kind, _, entry_header, entry_size = ENTRY.unpack_from(library, place)
            (architecture,) = struct.unpack_from("<I", library, place + ARCHITECTURE_AT)
            start = place + entry_header
            if entry_header < ARCHITECTURE_AT + 4 or start + entry_size > end or not 20 <= architecture < 1000:
                raise BundleError(
                    f"the fat binary at byte {at} has an entry (kind {kind}, sm_{architecture}, {entry_size} bytes) that "
                    "does not follow the known layout. Make the kit with --all-architectures, which leaves libraries alone."
                )
            yield Entry(container, kind, architecture, start, entry_size)
            place = start + entry_size
        container += 1
        at = library.find(MAGIC, end)


def blank_other_architectures(library: bytearray, architecture: int) -> int:
    """Set the code that a GPU of `architecture` (90 for sm_90) cannot or would not run to zero; returns the bytes blanked.

    A container keeps its machine code for this very architecture; where it has none, the newest older one of the same major
    version, which runs too, and its PTX, from which the driver compiles.
    """
    containers: dict[int, list[Entry]] = {}
    for entry in entries(library):
        containers.setdefault(entry.container, []).append(entry)
    blanked = 0
    for found in containers.values():
        keep = _kept(found, architecture)
        for entry in found:
            if entry not in keep:
                library[entry.start : entry.start + entry.size] = bytes(entry.size)
                blanked += entry.size
    return blanked


def _kept(found: list[Entry], architecture: int) -> set[Entry]:
    exact = {entry for entry in found if entry.kind == ELF and entry.architecture == architecture}
    if exact:
        return exact
    runs = [one for one in found if one.architecture <= architecture and _runs(one, architecture)]
    if not runs:
        # code of other GPUs alone: never launched on this one
        return set()
    newest = {kind: max((one.architecture for one in runs if one.kind == kind), default=None) for kind in (PTX, ELF)}
    return {one for one in runs if one.architecture == newest.get(one.kind)}


def _runs(entry: Entry, architecture: int) -> bool:
    return entry.kind == PTX or (entry.kind == ELF and entry.architecture // 10 == architecture // 10)
