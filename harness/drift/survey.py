"""Every series against every pin of its engine, and against refs of a git repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from harness.drift.classify import classify
from harness.drift.history import borrowed, last_good
from harness.drift.model import LastGood, SeriesDrift, TargetKind, worst
from harness.errors import SeriesError, UpkernelError
from harness.paths import Paths
from harness.pins.model import Pin
from harness.pins.reader import Pins
from harness.progress import Progress
from harness.series.apply import build_tip, stack_patches
from harness.series.model import Series
from harness.series.reader import parse_id, patches_for, read_series, stack
from harness.trees.bases import Base, NoAnswer, ensure_base, fetch_ref
from harness.trees.repository import locked, repository, resolve
from harness.vocabulary import DriftState, Source

__all__ = ["Request", "survey"]

APPLIES = frozenset({DriftState.CLEAN, DriftState.CLEAN_3WAY})


@dataclass(frozen=True, slots=True)
class Request:
    """What to look at. `pins` empty: all pins of the engine. `refs` are looked up in the mirror, else at the pin's URL."""

    pins: tuple[str, ...] = ()
    refs: tuple[str, ...] = ()
    mirror: Path | None = None
    source: Source | None = None


def survey(paths: Paths, pins: Pins, names: Sequence[str], request: Request, progress: Progress) -> tuple[SeriesDrift, ...]:
    """One row for each series and target. What keeps a series from being looked at is a row with a problem, not an exception.

    Raises UnknownPinError when the request names a pin that no engine of these series has.
    """
    rows: list[SeriesDrift] = []
    for name in names:
        engine, _ = parse_id(name)
        targets = [pins.find(engine, one) for one in request.pins] if request.pins else list(pins.of(engine))
        try:
            series = read_series(paths, name)
            pins.find(engine, series.pin)
        except UpkernelError as error:
            rows.append(SeriesDrift(name, engine, None, "-", TargetKind.PIN, None, None, "-", None, problem=str(error)))
            continue
        one = _Survey(paths, pins, series, request, progress)
        rows += [one.on_pin(pin) for pin in targets]
        rows += [one.on_ref(ref) for ref in request.refs]
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class _Survey:
    paths: Paths
    pins: Pins
    series: Series
    request: Request
    progress: Progress

    def on_pin(self, pin: Pin) -> SeriesDrift:
        """The port to that pin where there is one, else the patches for the bench pin."""
        row = self._row(pin.version, TargetKind.PIN, pin.version if pin.version in self.series.ports else self.series.pin)
        try:
            with locked(self.paths, pin.engine, self.progress), self.progress.step(f"{self.series.id} on {pin.name}"):
                base = self._base(pin)
                return self._look(replace(row, source=base.source, commit=base.commit), pin.version)
        except UpkernelError as error:
            return replace(row, problem=str(error))

    def on_ref(self, ref: str) -> SeriesDrift:
        """The newest port on a branch, tag or commit; where it does not apply, also since when."""
        newest = max((self.series.pin, *self.series.ports), key=Version)
        row = self._row(ref, TargetKind.REF, newest)
        try:
            pin = self.pins.find(self.series.engine, newest)
            where = str(self.request.mirror.resolve()) if self.request.mirror else pin.git_url
            with locked(self.paths, pin.engine, self.progress), self.progress.step(f"{self.series.id} on {ref}"):
                commit = fetch_ref(repository(self.paths, pin.engine), pin, ref, where)
                row = self._look(replace(row, source=Source.GIT, commit=commit), newest)
                return row if row.state in APPLIES else self._since(row, pin, commit)
        except UpkernelError as error:
            return replace(row, problem=str(error))

    def _row(self, target: str, kind: TargetKind, version: str) -> SeriesDrift:
        series = self.series
        return SeriesDrift(series.id, series.engine, series.status, target, kind, None, None, version, None)

    def _base(self, pin: Pin) -> Base:
        request = self.request
        if request.mirror is not None and request.source is None:
            # a mirror may lack an old tag; what the harness has already, or the archive, will do
            try:
                return ensure_base(self.paths, pin, self.progress, mirror=request.mirror, source=Source.GIT)
            except NoAnswer as error:
                self.progress.warn(str(error))
            return ensure_base(self.paths, pin, self.progress)
        return ensure_base(self.paths, pin, self.progress, mirror=request.mirror, source=request.source)

    def _look(self, row: SeriesDrift, version: str) -> SeriesDrift:
        repo = repository(self.paths, self.series.engine)
        stacked = [(one.id, patch) for one in stack(self.series) for patch in patches_for(one, version)]
        found = classify(repo, str(row.commit), stacked, old=self._old(repo, row.patches_for))
        # those below matter where they are in the way
        states = [one.state for one in found if one.series == self.series.id or one.state is not DriftState.LANDED]
        return replace(row, state=worst(tuple(states)), patches=found)

    def _old(self, repo: Path, version: str) -> str:
        """The tip that the patches make of their own pin: it has every file that a 3-way merge asks for."""
        pin = self.pins.find(self.series.engine, version)
        base = self._base(pin)
        try:
            return build_tip(repo, base.commit, stack_patches(self.series, version))
        except SeriesError as error:
            self.progress.warn(f"{self.series.id} does not apply to its own pin {pin.name}, so moves may be missed: {error}")
            return base.commit

    def _since(self, row: SeriesDrift, pin: Pin, commit: str) -> SeriesDrift:
        mirror = self.request.mirror
        if mirror is None:
            return replace(row, no_history="since when, only --mirror PATH (a repository with its history) can tell")
        base = resolve(mirror, f"refs/tags/{pin.tag}") or resolve(mirror, pin.commit or "")
        if base is None:
            return replace(row, no_history=f"the mirror {mirror} has no tag {pin.tag}, so it is not known from where to look")
        with borrowed(mirror.resolve(), repository(self.paths, pin.engine)) as both:
            answer = last_good(both, base, commit, stack_patches(self.series, row.patches_for))
        return replace(row, last_good=answer) if isinstance(answer, LastGood) else replace(row, no_history=answer)
