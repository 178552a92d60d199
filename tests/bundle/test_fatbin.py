"""Which code is blanked, byte by byte, and that nothing else changes."""

from __future__ import annotations

import pytest
from bundle_fakes import fat_binary, noise

from harness.bundle.fatbin import ELF, PTX, blank_other_architectures, entries
from harness.errors import BundleError


def code(name: int) -> bytes:
    return noise(100, seed=name)


def test_entries_are_found_with_their_place():
    library = (
        b"\x7fELF"
        + noise(50)
        + fat_binary((ELF, 80, code(80)), (PTX, 90, code(9)))
        + noise(30)
        + fat_binary((ELF, 90, code(90)))
    )
    found = list(entries(library))
    assert [(one.container, one.kind, one.architecture) for one in found] == [(0, ELF, 80), (0, PTX, 90), (1, ELF, 90)]
    assert [library[one.start : one.start + one.size] for one in found] == [code(80), code(9), code(90)]


def test_other_code_becomes_zeros_in_place_and_all_else_stays():
    before, after = noise(50, seed=5), noise(30, seed=6)
    entry = [(ELF, 80, code(80)), (ELF, 90, code(90)), (ELF, 100, code(100)), (PTX, 80, code(8))]
    library = bytearray(before + fat_binary(*entry) + after)
    expected = (
        before + fat_binary((ELF, 80, bytes(100)), (ELF, 90, code(90)), (ELF, 100, bytes(100)), (PTX, 80, bytes(100))) + after
    )
    assert blank_other_architectures(library, 90) == 300
    assert bytes(library) == expected


@pytest.mark.parametrize(
    ("architectures", "kept"),
    [
        ([(ELF, 75), (ELF, 80), (PTX, 80)], [(PTX, 80)]),  # machine code runs within one major version; PTX is compiled
        ([(PTX, 80), (PTX, 89), (ELF, 120)], [(PTX, 89)]),  # from the newest PTX that is not too new
        ([(PTX, 100), (ELF, 100)], []),  # nothing that this GPU could run
        ([(ELF, 90), (ELF, 90), (PTX, 90)], [(ELF, 90), (ELF, 90)]),  # sm_90 and sm_90a are both numbered 90
    ],
)
def test_what_a_gpu_of_sm_90_keeps(architectures: list[tuple[int, int]], kept: list[tuple[int, int]]):
    library = bytearray(fat_binary(*[(kind, arch, code(place)) for place, (kind, arch) in enumerate(architectures)]))
    blank_other_architectures(library, 90)
    assert [(one.kind, one.architecture) for one in entries(library) if any(library[one.start : one.start + one.size])] == kept


def test_older_machine_code_of_the_same_major_version_is_kept():
    library = bytearray(fat_binary((ELF, 80, code(1)), (ELF, 90, code(2))))
    assert blank_other_architectures(library, 86) == 100
    assert code(1) in library
    assert code(2) not in library


def test_the_magic_number_by_chance_is_no_container():
    library = bytearray(noise(10) + b"\x50\xed\x55\xba" + b"\xff" * 40)
    original = bytes(library)
    assert blank_other_architectures(library, 90) == 0
    assert bytes(library) == original


def test_an_entry_of_an_unknown_layout_is_refused_and_not_guessed():
    library = bytearray(fat_binary((ELF, 80, code(1))))
    library[16 + 28 : 16 + 32] = (5).to_bytes(4, "little")
    with pytest.raises(BundleError, match=r"sm_5.*--all-architectures"):
        blank_other_architectures(library, 90)
