"""Nsight Compute on one kernel: a few launches, the counters that say what bounds it, one table.

Clocks are left as they are (--clock-control none), as everywhere in upkernel; each launch is replayed once per pass, so its
time stands beside the counters for orientation and is no measurement.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness.doctor.tools import run_tool
from harness.errors import ProfileError
from harness.profiles.names import normalise
from harness.profiles.tables import Table
from harness.runs.process import run_logged

__all__ = ["NCU_VARIABLE", "KernelCounters", "collect", "counters_table", "locate_ncu", "ncu_command", "read_counters"]

NCU_VARIABLE = "UPKERNEL_NCU"
_PLACES = ("opt/nvidia/nsight-compute/*/ncu", "usr/local/cuda*/bin/ncu")
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio")
_STALLS = (
    *("barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard"),
    *("math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "selected"),
    *("short_scoreboard", "sleeping", "tex_throttle", "wait"),
)
# Metric, the row's words, its unit, and what a raw value is multiplied with. Names of Nsight Compute 2025.3.
_METRICS: tuple[tuple[str, str, str, float], ...] = (
    ("gpu__time_duration.sum", "time of a launch (profiled)", "us", 1e-3),
    ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "DRAM throughput", "% of peak", 1),
    ("dram__bytes_read.sum", "DRAM bytes read", "MB", 1e-6),
    ("dram__bytes_write.sum", "DRAM bytes written", "MB", 1e-6),
    ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "SM throughput", "% of peak", 1),
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "achieved occupancy", "% of warps", 1),
    ("sm__maximum_warps_per_active_cycle_pct", "theoretical occupancy", "% of warps", 1),
    ("launch__registers_per_thread", "registers", "a thread", 1),
    ("launch__shared_mem_per_block", "shared memory", "bytes a block", 1),
    ("launch__waves_per_multiprocessor", "waves", "an SM", 1),
    ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "shared-memory bank conflicts", "a launch", 1),
)
_TOP_STALLS = 5


@dataclass(frozen=True, slots=True)
class KernelCounters:
    """The launches of one kernel with one shape of grid. `values` has one entry a launch, None where ncu gave none."""

    name: str
    grid: str
    block: str
    launches: int
    values: Mapping[str, tuple[float | None, ...]]


def locate_ncu(given: Path | None = None) -> Path:
    """`given`, $UPKERNEL_NCU, the one on PATH, or the newest of a toolkit. Raises ProfileError."""
    named = given or (Path(os.environ[NCU_VARIABLE]) if os.environ.get(NCU_VARIABLE) else None)
    on_path = shutil.which("ncu")
    candidates = [named] if named else [Path(on_path)] if on_path else []
    if not candidates:
        candidates = sorted((one for place in _PLACES for one in Path("/").glob(place)), reverse=True)
    for one in candidates:
        if run_tool([str(one), "--version"]):
            return one
    raise ProfileError(
        f"{named} is no ncu that runs here"
        if named
        else f"ncu was not found; install Nsight Compute, or name one with --ncu-path or {NCU_VARIABLE}"
    )


def ncu_command(
    ncu: Path, kernel: str, command: Sequence[str], log: Path, *, launches: int, skip: int, ranged: bool
) -> tuple[str, ...]:
    """`kernel` is a row's name; within the profiler's range only, where the command opens one."""
    metrics = [name for name, *_ in _METRICS]
    metrics += [f"smsp__average_warps_issue_stalled_{one}_per_issue_active.ratio" for one in _STALLS]
    return (
        str(ncu),
        "--clock-control=none",
        "--target-processes=all",
        *(("--profile-from-start=off",) if ranged else ()),
        "--kernel-name-base=demangled",
        f"--kernel-name=regex:{kernel_pattern(kernel)}",
        f"--launch-skip={skip}",
        f"--launch-count={launches}",
        f"--metrics={','.join(metrics)}",
        "--print-units=base",
        "--csv",
        "--page=raw",
        f"--log-file={log}",
        *command,
    )


def kernel_pattern(kernel: str) -> str:
    """A regular expression for the demangled name behind a normalised one: launcher<payload> has its payload further on."""
    bare, _, payload = kernel.partition("<")
    last = re.escape(bare.rsplit("::", 1)[-1].strip())
    payload = payload.rstrip("> ").strip()
    return f"{last}.*{re.escape(payload)}" if payload else last


def collect(
    ncu: Path,
    kernel: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    timeout_s: float,
    launches: int,
    skip: int,
    ranged: bool,
) -> tuple[KernelCounters, ...]:
    """Run the command under ncu. Raises ProfileError: it failed, timed out, or never launched the kernel."""
    folder.mkdir(parents=True, exist_ok=True)
    table, log = folder / "counters.csv", folder / "counters.log"
    for old in (table, log):
        old.unlink(missing_ok=True)
    end = run_logged(
        ncu_command(ncu, kernel, command, table, launches=launches, skip=skip, ranged=ranged),
        environment=environment,
        directory=folder,
        log=log,
        timeout_s=timeout_s,
    )
    if end.timed_out:
        raise ProfileError(f"ncu ran longer than {timeout_s:.0f} s and was stopped; profile fewer launches. Log: {log}")
    if end.code != 0:
        said = table.read_text(encoding="utf-8", errors="replace")[-800:] if table.is_file() else ""
        raise ProfileError(f"the command under ncu failed with exit code {end.code}. Log: {log}\n{said.strip()}")
    return read_counters(table, kernel)


def read_counters(path: Path, kernel: str) -> tuple[KernelCounters, ...]:
    """The launches in a raw CSV page (`ncu --csv --page raw`), its messages between them ignored, grouped by grid.

    Raises ProfileError: no such file, no launch of the kernel, or counters that the driver does not let this user read.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise ProfileError(f"ncu left no table at {path}: {error.strerror or error}") from error
    if any("ERR_NVGPUCTRPERM" in line for line in lines):
        raise ProfileError(
            "the driver lets only root read GPU counters here (ERR_NVGPUCTRPERM): run as root, or ask the administrator for "
            "NVreg_RestrictProfilingToAdminUsers=0"
        )
    records = list(csv.reader(line for line in lines if line.startswith('"')))
    if len(records) < 3:
        raise ProfileError(
            f"ncu met no launch of {kernel!r} in the profiled range: take a name from the hot-kernel table, or a smaller --skip"
        )
    header, rows = records[0], [row for row in records[2:] if len(row) == len(records[0])]
    wanted = [name for name in header if name in {one for one, *_ in _METRICS} or _STALL.fullmatch(name)]
    at = {name: header.index(name) for name in (*wanted, "Kernel Name", "Grid Size", "Block Size")}
    groups: dict[tuple[str, str, str], list[list[str]]] = {}
    for row in rows:
        key = (normalise(row[at["Kernel Name"]]), row[at["Grid Size"]], row[at["Block Size"]])
        groups.setdefault(key, []).append(row)
    return tuple(
        KernelCounters(
            name, grid, block, len(own), {metric: tuple(_number(row[at[metric]]) for row in own) for metric in wanted}
        )
        for (name, grid, block), own in groups.items()
    )


def _number(text: str) -> float | None:
    """1,234.5 is how ncu writes a number; it writes nothing or n/a for what it could not collect."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def counters_table(counters: KernelCounters) -> Table:
    """One row a counter, with its median and range over the launches; the main stall reasons follow."""
    rows = [_row(words, unit, scale, counters.values.get(name, ())) for name, words, unit, scale in _METRICS]
    stalls = []
    for name, values in counters.values.items():
        match = _STALL.fullmatch(name)
        known = [one for one in values if one is not None]
        # "selected" is the cycle in which a warp issues: no stall.
        if match and known and match[1] != "selected":
            stalls.append((median(known), match[1], values))
    rows += [
        _row(f"stall: {reason.replace('_', ' ')}", "cycles an instruction", 1, values)
        for _, reason, values in sorted(stalls, key=lambda one: -one[0])[:_TOP_STALLS]
    ]
    title = f"{counters.name}, grid {counters.grid}, block {counters.block}, {counters.launches} launches"
    return Table(title, ("counter", "median", "least to most", "unit"), tuple(rows), frozenset({1, 2}))


def _row(words: str, unit: str, scale: float, values: Sequence[float | None]) -> tuple[str, ...]:
    known = [one * scale for one in values if one is not None]
    if not known:
        return (words, "n/a", "", unit)
    return (words, f"{median(known):.4g}", f"{min(known):.4g} to {max(known):.4g}", unit)
