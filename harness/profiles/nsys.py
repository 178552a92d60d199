"""Running Nsight Systems: find it, record a command, and turn what it leaves into an SQLite export.

Recording is by graph node, without CPU sampling, and only inside the range that the engine opens with cudaProfilerStart, so
start-up, warm-up and graph capture stay out. The nsys inside Nsight Compute leaves a .qdstrm and has no importer on its
side: QdstrmImporter lies in a folder beside it, and may miss libraries that a minimal system does not have.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.doctor.tools import find_nsys, run_tool
from harness.errors import ProfileError
from harness.runs.process import End, run_logged

__all__ = ["LIBRARIES_VARIABLE", "NSYS_VARIABLE", "Nsys", "export_report", "locate_nsys", "record"]

NSYS_VARIABLE = "UPKERNEL_NSYS"
# Folder of shared libraries for the importer, put before LD_LIBRARY_PATH for it alone.
LIBRARIES_VARIABLE = "UPKERNEL_NSYS_LIBRARIES"
RECORDING = "recording"
# What makes kernels of CUDA graphs visible; an nsys whose help does not know it is too old.
_GRAPH_OPTION = "--cuda-graph-trace"
_TAIL_LINES = 15
_EXPORT_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Nsys:
    """An nsys that can record by graph node, and a folder of libraries for its importer (None: the system's are enough)."""

    path: Path
    version: str
    libraries: Path | None


def locate_nsys(given: Path | None = None, libraries: Path | None = None) -> Nsys:
    """The nsys to use: `given`, $UPKERNEL_NSYS, the one on PATH, or the newest that a toolkit brought.

    Raises ProfileError: none found, not runnable, too old, or no such folder of libraries.
    """
    named = given or (Path(os.environ[NSYS_VARIABLE]) if os.environ.get(NSYS_VARIABLE) else None)
    if named is not None:
        said = run_tool([str(named), "--version"]) or ""
        match = re.search(r"\d+(\.\d+)+\S*", said)
        if match is None:
            raise ProfileError(
                f"{named} is no nsys that runs here: it said {said!r} to --version; give the path of another with --nsys"
            )
        path, version = named, match[0]
    else:
        found = find_nsys()
        if found is None:
            raise ProfileError(
                "nsys was not found, on PATH or where CUDA and Nsight Compute put it. Install Nsight Systems, or name one with "
                f"--nsys or {NSYS_VARIABLE}. Recordings made elsewhere can be read without it: --from FILE.sqlite"
            )
        path, version = Path(found[0]), found[1]
    if _GRAPH_OPTION not in (run_tool([str(path), "profile", "--help"]) or ""):
        raise ProfileError(
            f"{path} ({version}) is too old: it has no {_GRAPH_OPTION}, so kernels inside CUDA graphs would be missing. "
            "Install a current Nsight Systems, or name one with --nsys"
        )
    folder = libraries or (Path(os.environ[LIBRARIES_VARIABLE]) if os.environ.get(LIBRARIES_VARIABLE) else None)
    if folder is not None and not folder.is_dir():
        raise ProfileError(f"{folder}, the folder of libraries for nsys, does not exist")
    return Nsys(path=path, version=version, libraries=folder)


def profile_command(nsys: Nsys, folder: Path, command: Sequence[str], *, ranged: bool) -> tuple[str, ...]:
    """`ranged`: record between cudaProfilerStart and cudaProfilerStop; else everything, start-up included."""
    # "stop" and not nsys's default, which also ends the application at the end of the range.
    capture = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop") if ranged else ()
    return (
        str(nsys.path),
        "profile",
        "--trace=cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        f"{_GRAPH_OPTION}=node",
        "--trace-fork-before-exec=true",
        *capture,
        "--force-overwrite=true",
        "--output",
        str(folder / RECORDING),
        *command,
    )


def record(
    nsys: Nsys,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    timeout_s: float,
    ranged: bool = True,
) -> Path:
    """Run the command under nsys in `folder`; the report (.nsys-rep or .qdstrm) that it leaves.

    Raises ProfileError, with the end of the log: the command failed, nsys was killed or ran out of time, or no range began.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in (folder / f"{RECORDING}.nsys-rep", folder / f"{RECORDING}.qdstrm", folder / f"{RECORDING}.sqlite"):
        old.unlink(missing_ok=True)
    log = folder / "recording.log"
    log.unlink(missing_ok=True)
    end = run_logged(
        profile_command(nsys, folder, command, ranged=ranged),
        environment=environment,
        directory=folder,
        log=log,
        timeout_s=timeout_s,
        # nsys writes its report after the command has ended.
        grace_s=60.0,
    )
    if end.timed_out:
        raise ProfileError(_with_tail(f"the profiled command ran longer than {timeout_s:.0f} s and was stopped", log))
    if end.code != 0:
        raise ProfileError(_with_tail(_ending(end), log))
    for suffix in (".nsys-rep", ".qdstrm"):
        report = folder / f"{RECORDING}{suffix}"
        if report.is_file() and report.stat().st_size:
            return report
    why = (
        "the range never began: the command has to call cudaProfilerStart (an engine does with its --profile flag); --whole "
        "records everything instead"
        if ranged
        else "it may have been killed before it wrote one"
    )
    raise ProfileError(_with_tail(f"nsys left no report in {folder}; {why}", log))


def _ending(end: End) -> str:
    # A shell and nsys report a child's signal as 128 + number.
    signal = -end.code if end.code < 0 else end.code - 128 if end.code > 128 else 0
    if signal in {6, 9, 15}:
        return f"nsys or its command was killed (signal {signal}); what it had recorded is cut off and is not read"
    return f"the profiled command failed with exit code {end.code}"


def _with_tail(message: str, log: Path) -> str:
    try:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    tail = "".join(f"\n  {line[-300:]}" for line in lines[-_TAIL_LINES:])
    return f"{message}. Log: {log}{', which ends:' if tail else ' (empty)'}{tail}"


def export_report(nsys: Nsys, report: Path, folder: Path) -> Path:
    """The SQLite export of a .nsys-rep or .qdstrm, made in `folder`. Raises ProfileError with the tool's own words."""
    folder.mkdir(parents=True, exist_ok=True)
    if report.suffix == ".qdstrm":
        report = _import(nsys, report, folder)
    target = folder / f"{report.stem}.sqlite"
    _run(
        nsys, [str(nsys.path), "export", "--type=sqlite", "--force-overwrite=true", f"--output={target}", str(report)], "export"
    )
    if not target.is_file():
        raise ProfileError(f"nsys exported {report} without an error and without a result ({target} is not there)")
    return target


def _import(nsys: Nsys, stream: Path, folder: Path) -> Path:
    """A .nsys-rep from the raw stream that an nsys without importer leaves."""
    importer = _importer(nsys)
    target = folder / f"{stream.stem}.nsys-rep"
    target.unlink(missing_ok=True)
    _run(nsys, [str(importer), "--input-file", str(stream), "--output-file", str(target)], "import")
    if not target.is_file():
        raise ProfileError(f"{importer} made no report of {stream}, which may be cut off (was nsys killed?); record again")
    return target


def _importer(nsys: Nsys) -> Path:
    """QdstrmImporter, in nsys's own folder or in one beside it (host-linux-x64, linux-desktop-glibc_2_11_3-x64)."""
    here = nsys.path.resolve().parent
    found = sorted(
        one
        for place in (here, here.parent)
        for pattern in ("QdstrmImporter", "*/QdstrmImporter")
        for one in place.glob(pattern)
    )
    if not found:
        raise ProfileError(
            f"{nsys.path} leaves a .qdstrm, and no QdstrmImporter lies beside it in {here.parent}: open the .qdstrm with "
            "Nsight Systems on another machine, export it there (nsys export -t sqlite) and read it with --from"
        )
    return found[0]


def _run(nsys: Nsys, command: Sequence[str], what: str) -> None:
    environment = dict(os.environ)
    if nsys.libraries is not None:
        known = environment.get("LD_LIBRARY_PATH", "")
        environment["LD_LIBRARY_PATH"] = os.pathsep.join([str(nsys.libraries.resolve()), *([known] if known else [])])
    try:
        result = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_EXPORT_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise ProfileError(f"{command[0]} ({what}) ran longer than {_EXPORT_TIMEOUT_S:.0f} s and was stopped") from error
    except OSError as error:
        raise ProfileError(f"cannot start {command[0]}: {error.strerror or error}") from error
    said = (result.stdout + "\n" + result.stderr).strip()
    missing = re.search(r"error while loading shared libraries: (\S+?):", said)
    if missing:
        raise ProfileError(
            f"{command[0]} needs {missing[1]}, which is not on this machine. Debian and Ubuntu have it (libdw1, libelf1, "
            "libbz2-1.0); without root, unpack the packages (dpkg -x) and name the folder with --nsys-libraries or "
            f"{LIBRARIES_VARIABLE}"
        )
    if result.returncode != 0:
        raise ProfileError(
            f"{command[0]} ({what}) failed with exit code {result.returncode}: {said[-600:] or '(it said nothing)'}"
        )
