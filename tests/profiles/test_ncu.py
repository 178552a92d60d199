"""Nsight Compute: the pattern for a row's name, a real raw page, and pages that hold nothing."""

import os
import re
from pathlib import Path

import pytest

from harness.errors import ProfileError
from harness.profiles.ncu import collect, counters_table, kernel_pattern, locate_ncu, ncu_command, read_counters

RAW = Path(__file__).parent / "fixtures" / "ncu-raw.csv"


@pytest.mark.parametrize(
    ("row", "demangled"),
    [
        ("_fwd_kernel_stage1", "_fwd_kernel_stage1"),
        ("vllm::rms_norm_kernel", "void vllm::rms_norm_kernel<c10::BFloat16>(T1 *)"),
        ("cutlass::device_kernel<FlashAttnFwdSm90>", "void cutlass::device_kernel<flash::FlashAttnFwdSm90<X>>(T1)"),
        (
            "at::native::vectorized_elementwise_kernel<MulFunctor>",
            "void at::native::vectorized_elementwise_kernel<8, MulFunctor<f>>(int)",
        ),
    ],
)
def test_a_rows_name_finds_its_kernel(row: str, demangled: str) -> None:
    assert re.search(kernel_pattern(row), demangled)


def test_a_launcher_is_told_by_what_it_launches() -> None:
    pattern = kernel_pattern("cutlass::device_kernel<FlashAttnFwdSm90>")
    assert not re.search(pattern, "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<X>>(T1)")


def test_the_command_leaves_clocks_alone_and_keeps_to_the_range() -> None:
    command = ncu_command(Path("ncu"), "k", ["python", "x.py"], Path("/t.csv"), launches=2, skip=5, ranged=True)
    assert {"--clock-control=none", "--profile-from-start=off", "--launch-count=2", "--launch-skip=5"} <= set(command)
    assert command[-2:] == ("python", "x.py")
    whole = ncu_command(Path("ncu"), "k", ["x"], Path("/t.csv"), launches=2, skip=0, ranged=False)
    assert "--profile-from-start=off" not in whole


def test_a_real_page() -> None:
    small, large = read_counters(RAW, "_toy_norm_kernel")
    assert (small.grid, small.launches, large.grid, large.launches) == ("(8, 1, 1)", 2, "(2048, 1, 1)", 1)
    rows = {row[0]: row for row in counters_table(large).rows}
    assert rows["time of a launch (profiled)"] == ("time of a launch (profiled)", "6.112", "6.112 to 6.112", "us")
    assert rows["DRAM throughput"][1:] == ("28.69", "28.69 to 28.69", "% of peak")
    assert rows["DRAM bytes read"][1] == "8.393"
    assert rows["achieved occupancy"][1] == "63.48"
    assert rows["registers"][1] == "31"
    assert rows["shared-memory bank conflicts"][1] == "167"
    assert [row[0] for row in counters_table(large).rows if row[0].startswith("stall")][:2] == [
        "stall: long scoreboard",
        "stall: barrier",
    ]
    assert {row[0]: row for row in counters_table(small).rows}["DRAM throughput"][1:3] == ("0.305", "0.3 to 0.31")


def test_a_counter_that_could_not_be_collected_is_not_zero(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    path.write_text(RAW.read_text().replace('"28.69"', '"n/a"'))
    _, large = read_counters(path, "_toy_norm_kernel")
    assert {row[0]: row for row in counters_table(large).rows}["DRAM throughput"][1] == "n/a"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "met no launch of 'k'"),
        ("==PROF== Connected to process 1\n==WARNING== No kernels were profiled.\n", "met no launch of 'k'"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "only root read GPU counters"),
    ],
)
def test_pages_without_launches(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "raw.csv"
    path.write_text(content)
    with pytest.raises(ProfileError, match=message):
        read_counters(path, "k")


def test_no_page(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="ncu left no table"):
        read_counters(tmp_path / "none.csv", "k")


def _ncu(folder: Path, body: str) -> Path:
    """A fake: `body` is run with $log, the table that --log-file asks for."""
    path = folder / "ncu"
    version = '[ "$1" = "--version" ] && { echo 2025.3; exit 0; }'
    log = 'log="$(echo "$@" | sed "s/.*--log-file=//; s/ .*//")"'
    path.write_text(f"#!/bin/sh\n{version}\n{log}\n{body}\n")
    path.chmod(0o755)
    return path


def _collect(folder: Path, body: str) -> None:
    found = collect(
        locate_ncu(_ncu(folder, body)),
        "_toy_norm_kernel",
        ["true"],
        environment=dict(os.environ),
        folder=folder / "out",
        timeout_s=20,
        launches=3,
        skip=0,
        ranged=True,
    )
    assert sum(one.launches for one in found) == 3


def test_collecting(tmp_path: Path) -> None:
    _collect(tmp_path, f'cp {RAW} "$log"')


def test_the_command_under_ncu_fails(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="failed with exit code 4"):
        _collect(tmp_path, "exit 4")


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="is no ncu that runs here"):
        locate_ncu(tmp_path / "none")
