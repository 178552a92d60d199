"""An experiment on disk: its plan, and one line for each run, written and fsynced as the run ends."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import FileLock, Timeout

from harness.errors import EvidenceError, PlanError, UnknownExperimentError
from harness.experiments import codec
from harness.experiments.plan import ArmIdentity, Plan, plan_from_json, plan_to_json
from harness.experiments.samples import Sample
from harness.files import write_atomically
from harness.names import nearest
from harness.paths import Paths
from harness.vocabulary import Slot

__all__ = ["ExperimentStore", "check_arms", "experiments", "read_experiment"]

PLAN = "plan.json"
SAMPLES = "samples.jsonl"


class ExperimentStore:
    """One experiment's folder, held by one process. A context manager: leaving it frees the lock.

    `aside` tells of a line that a kill tore and that was set aside when the experiment was opened.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.plan = plan
        self.samples: list[Sample] = []
        self.aside: list[str] = []
        self._lock = FileLock(folder / ".lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise EvidenceError(
                f"experiment {plan.id} is in use by another harness process. Wait for it, or stop it and then resume."
            ) from error

    @classmethod
    def create(cls, paths: Paths, plan: Plan) -> ExperimentStore:
        """A new experiment: its plan is on disk, with its hash, before any run. Raises EvidenceError when it exists already."""
        folder = paths.experiments / plan.id
        try:
            folder.mkdir(parents=True)
        except FileExistsError as error:
            raise EvidenceError(f"experiment {plan.id} exists already. Resume it, or plan anew.") from error
        except OSError as error:
            raise EvidenceError(f"cannot make {folder}: {error.strerror}") from error
        write_atomically(folder / PLAN, codec.pretty(plan_to_json(plan)), EvidenceError)
        return cls(folder, plan)

    @classmethod
    def resume(cls, paths: Paths, name: str) -> ExperimentStore:
        """An experiment that was begun. The plan must be as it was hashed; a torn last line is moved to samples.torn-N."""
        folder = _folder(paths, name)
        plan = _read_plan(folder)
        store = cls(folder, plan)
        try:
            good, torn, store.samples = _read_samples(folder)
            if torn:
                store._set_aside(good, torn)
        except BaseException:
            store.close()
            raise
        return store

    def _set_aside(self, good: int, torn: bytes) -> None:
        number = 1
        while (other := self.folder / f"samples.torn-{number}").exists():
            number += 1
        write_atomically(other, torn, EvidenceError)
        os.truncate(self.folder / SAMPLES, good)
        self.aside.append(
            f"the last line of {SAMPLES} was torn ({len(torn)} bytes); it is in {other.name}, and its run is made again"
        )

    def begin(self, generation: int) -> int:
        """Start an attempt at a generation in a folder of its own; returns its number, 0 for the first."""
        attempt = 0
        while (folder := self._attempt_folder(generation, attempt)).exists():
            attempt += 1
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise EvidenceError(f"cannot make {folder}: {error.strerror}. Finished generations are kept.") from error
        return attempt

    def _attempt_folder(self, generation: int, attempt: int) -> Path:
        name = str(generation) if attempt == 0 else f"{generation}-again-{attempt}"
        return self.folder / "runs" / name

    def directory(self, generation: int, attempt: int, position: int | None = None) -> Path:
        """runs/<generation>/<position>: a run's own folder; without a position the attempt's (for the sessions)."""
        folder = self._attempt_folder(generation, attempt)
        return folder if position is None else folder / str(position)

    def relative(self, path: Path | None) -> str | None:
        """How a log's path is stored: relative to the experiment, so that the folder can be moved."""
        if path is None:
            return None
        return str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else str(path)

    def append(self, sample: Sample) -> None:
        """Add one line and wait until it is on the disk. Raises EvidenceError (disk full); earlier lines stay whole."""
        line = (codec.canonical(sample) + "\n").encode()
        file = self.folder / SAMPLES
        before = 0
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                before = os.fstat(descriptor).st_size
                _write(descriptor, line)
                os.fsync(descriptor)
            except OSError:
                # A part of the line may be there; take it back, so that the next line does not join it.
                os.ftruncate(descriptor, before)
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            raise EvidenceError(
                f"cannot write {file}: {error.strerror or error}. {len(self.samples)} earlier samples are kept; "
                "make room and resume."
            ) from error
        self.samples.append(sample)

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def experiments(paths: Paths) -> tuple[str, ...]:
    """The names of all stored experiments, oldest first."""
    return tuple(sorted(one.parent.name for one in paths.experiments.glob(f"*/{PLAN}")))


def read_experiment(paths: Paths, name: str) -> tuple[Plan, tuple[Sample, ...]]:
    """Plan and samples without the lock and without changing a file (a torn last line is left out), for reports."""
    folder = _folder(paths, name)
    return _read_plan(folder), tuple(_read_samples(folder)[2])


def check_arms(plan: Plan, arms: dict[Slot, ArmIdentity]) -> None:
    """Before resuming: the arms must still be what the plan says. Raises PlanError naming the arm that changed."""
    for slot, planned in plan.arms.items():
        now = arms.get(slot)
        if now is None or now.digest != planned.digest:
            found = "missing" if now is None else f"{now.what} at {now.tip[:12]} ({now.digest[:12]})"
            raise PlanError(
                f"the {slot} arm is not what was planned: {planned.what} at {planned.tip[:12]} ({planned.digest[:12]}), "
                f"now {found}. Samples of different arms do not go together: start a new experiment."
            )


def _folder(paths: Paths, name: str) -> Path:
    known = experiments(paths)
    if name not in known:
        raise UnknownExperimentError(f"there is no experiment {name!r} in {paths.experiments}. {nearest(name, known)}")
    return paths.experiments / name


def _read_plan(folder: Path) -> Plan:
    file = folder / PLAN
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"cannot read {file}: {error}") from error
    return plan_from_json(codec.parse(text, str(file)), str(file))


def _read_samples(folder: Path) -> tuple[int, bytes, list[Sample]]:
    """Length of the whole lines, the torn rest, and the samples. Raises EvidenceError for damage that a kill cannot explain."""
    file = folder / SAMPLES
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return 0, b"", []
    except OSError as error:
        raise EvidenceError(f"cannot read {file}: {error.strerror}") from error
    good = data.rfind(b"\n") + 1
    samples = []
    for number, line in enumerate(data[:good].splitlines(), start=1):
        where = f"{file} line {number}"
        samples.append(codec.decode(Sample, codec.parse(line.decode(errors="replace"), where), where))
    return good, data[good:], samples
