"""One session: both arms, every file, the comparison."""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import RunError
from harness.experiments.machine import read_machine
from harness.progress import Progress
from harness.series.model import Series
from harness.series.patchfile import read_patch
from harness.series.reader import patches_for
from harness.trees.worktrees import IMPORT_ROOTS
from harness.upstream_tests.arms import TestArm
from harness.upstream_tests.compare import changes, summary
from harness.upstream_tests.model import KIND, SCHEMA, ArmResult, TestReport
from harness.upstream_tests.record import Ended
from harness.upstream_tests.run import FileRun, Limits, run_file
from harness.vocabulary import Device

__all__ = ["Session", "run_session"]

PLUGIN = Path(__file__).parent / "plugin"
# What pytest reads at the root of an engine's repository, beside its tests.
SETTINGS = ("pytest.ini", "pyproject.toml", "conftest.py", "tox.ini", "setup.cfg")
PACKAGES = ("torch", "triton", "vllm", "sglang", "flashinfer-python", "transformers", "pytest")
QUESTION = (
    "import importlib.metadata as m, json, sys\n"
    "have = {d.metadata['Name'].lower(): d.version for d in m.distributions() if d.metadata['Name']}\n"
    "gpu = ''\n"
    "try:\n    import torch\n    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ''\n"
    "except ImportError:\n    pass\n"
    "print(json.dumps([sys.version.split()[0], {n: have[n] for n in sys.argv[1:] if n in have}, gpu]))"
)
ASK_TIMEOUT = 120.0  # seconds; importing torch from a cold disk takes half of it


@dataclass(frozen=True, slots=True)
class Session:
    """What to run. `options` go to pytest, `output` gets logs and records."""

    series: Series
    pin: str
    device: Device
    files: Sequence[str]
    options: Sequence[str]
    limits: Limits
    output: Path


def run_session(session: Session, base: TestArm, patched: TestArm, progress: Progress) -> TestReport:
    """Run the files, in the patched tree's version, against the code of both arms, and compare them test by test.

    The series' own tests thus run on the base too, where they show that they fail without it. Raises RunError when the
    interpreter of an arm has no pytest or does not start.
    """
    files = [file for file in session.files if (patched.root / file).exists() or (base.root / file).exists()]
    versions, gpu = _ask(patched)
    results: list[tuple[Mapping[str, Ended], ArmResult]] = []
    for arm, slot in ((base, "base"), (patched, "patched")):
        folder = session.output / slot / "tree"
        _copy(session, arm, patched, folder, files)
        environment = dict(arm.environment)
        environment["PYTHONPATH"] = os.pathsep.join([str(PLUGIN), environment["PYTHONPATH"]])
        how = FileRun(arm.python, environment, folder, session.output / slot, session.options)
        ended: dict[str, Ended] = {}
        start = time.monotonic()
        for file in files:
            with progress.step(f"{slot}: {file}"):
                ended |= _without_places(run_file(how, file, session.limits), (folder, arm.root, arm.python.parent.parent))
        results.append((ended, summary(arm.tip, ended, time.monotonic() - start)))
    (before, base_result), (after, patched_result) = results
    return TestReport(
        schema=SCHEMA,
        kind=KIND,
        written=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        series=session.series.id,
        engine=session.series.engine,
        pin=session.pin,
        source=patched.source,
        device=session.device,
        machine=gpu or read_machine().cpu,
        versions=versions,
        command=" ".join(["pytest", *session.options, *files]),
        files=tuple(files),
        missing_files=tuple(file for file in session.files if file not in files),
        base=base_result,
        patched=patched_result,
        changes=changes(before, after, _added(session)),
    )


def _without_places(ended: Mapping[str, Ended], places: Sequence[Path]) -> dict[str, Ended]:
    """Details that do not say where on this machine things lie: they are stored and shown to others."""
    cleaned = {}
    for test, one in ended.items():
        detail = one.detail
        for place in places:
            detail = detail.replace(str(place), "(path)")
        cleaned[test] = replace(one, detail=detail)
    return cleaned


def _added(session: Session) -> frozenset[str]:
    """Files that the series adds."""
    patches = [read_patch(path) for path in patches_for(session.series, session.pin)]
    return frozenset(change.path for patch in patches for change in patch.changes if change.old is None)


def _copy(session: Session, arm: TestArm, patched: TestArm, folder: Path, files: Sequence[str]) -> None:
    """A folder with tests and pytest's settings and without the engine, so that what is imported is the arm's.

    Tests that lie inside the engine's package run from a copy of their own folder for the same reason.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    inside = f"{IMPORT_ROOTS[session.series.engine]}/" if IMPORT_ROOTS[session.series.engine] else ""
    tops = {file.split("/")[0] if not (inside and file.startswith(inside)) else str(Path(file).parent) for file in files}
    for top in sorted(tops):
        origin = patched.root / top if (patched.root / top).exists() else arm.root / top
        if origin.is_dir():
            shutil.copytree(
                origin, folder / top, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
            )
        else:
            shutil.copy(origin, folder / top)
    for name in SETTINGS:
        if (patched.root / name).is_file():
            shutil.copy(patched.root / name, folder / name)


def _ask(arm: TestArm) -> tuple[dict[str, str], str]:
    """Versions of what matters, and the GPU's name ("" where there is none)."""
    import json  # noqa: PLC0415

    try:
        done = subprocess.run(
            [str(arm.python), "-c", QUESTION, *PACKAGES],
            env=dict(arm.environment),
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT,
            check=True,
        )
        python, have, gpu = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise RunError(f"{arm.python} cannot be asked for its packages: {said.strip()[-300:]}") from error
    if "pytest" not in have:
        raise RunError(f"{arm.python} has no pytest, which the engine's tests need: install it there")
    return {"python": python, **have}, gpu
