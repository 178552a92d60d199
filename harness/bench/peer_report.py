"""The table of a kernel against its peers: at every point our time, the best peer's, and the ratio with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from harness.bench.peer_evidence import PeerEvidence
from harness.experiments.statistics import Interval, t_interval
from harness.experiments.wording import count
from harness.reports.table import number

__all__ = ["Cell", "Ratio", "ratios", "render_peers"]

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Cell:
    """A variant at a point: ln(µs) of each generation (mean over its rounds), and the largest error."""

    logs: Mapping[int, float]
    error: float

    @property
    def us(self) -> float:
        return math.exp(fmean(self.logs.values()))


@dataclass(frozen=True, slots=True)
class Ratio:
    """Best peer's time / ours: above 1 ours is faster. `best` is the peer that is fastest at this point, "" for a mean."""

    point: str
    best: str
    ours_us: float
    best_us: float
    value: float
    interval: Interval | None
    n: int


def cells(evidence: PeerEvidence, state: str) -> dict[tuple[str, str], Cell]:
    """(variant, point) -> Cell, of samples that count. A cell with any sample that does not count is left out: it is void."""
    bad = {(one.variant, one.point) for one in evidence.samples if one.problem}
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    errors: dict[tuple[str, str], float] = {}
    for one in evidence.samples:
        key = (one.variant, one.point)
        if key in bad or one.skipped or state not in one.times:
            continue
        found.setdefault(key, {}).setdefault(one.generation, []).append(math.log(one.times[state]))
        errors[key] = max(errors.get(key, 0.0), one.error)
    return {key: Cell({generation: fmean(logs) for generation, logs in by.items()}, errors[key]) for key, by in found.items()}


def ratios(evidence: PeerEvidence, ours: str, state: str, against: Sequence[str]) -> tuple[Ratio, ...]:
    """Each point where ours and a peer were measured, then their geometric mean (point "")."""
    table = cells(evidence, state)
    rows: list[Ratio] = []
    per_generation: dict[int, list[float]] = {}
    for point in evidence.points:
        mine = table.get((ours, point))
        others = {name: cell for name in against if (cell := table.get((name, point))) is not None}
        if mine is None or not others:
            continue
        best = min(others, key=lambda name: others[name].us)
        logs = {at: others[best].logs[at] - mine.logs[at] for at in mine.logs if at in others[best].logs}
        if not logs:
            continue
        for at, value in logs.items():
            per_generation.setdefault(at, []).append(value)
        rows.append(_ratio(point, best, mine.us, others[best].us, list(logs.values())))
    whole = [fmean(values) for values in per_generation.values() if len(values) == len(rows)]
    if rows and whole:
        mean_ours = math.exp(fmean(math.log(one.ours_us) for one in rows))
        mean_best = math.exp(fmean(math.log(one.best_us) for one in rows))
        rows.append(_ratio("", "", mean_ours, mean_best, whole))
    return tuple(rows)


def _ratio(point: str, best: str, ours_us: float, best_us: float, logs: list[float]) -> Ratio:
    interval = None
    if len(logs) > 1:
        found = t_interval(np.array(logs), CONFIDENCE)
        interval = Interval(math.exp(found.low), math.exp(found.high))
    return Ratio(point, best, ours_us, best_us, math.exp(fmean(logs)), interval, len(logs))


def render_peers(evidence: PeerEvidence) -> str:
    """Markdown: a headline and a table for each of our kernels and each cache state, then what was void or missing."""
    names = _by_role(evidence)
    parts = [f"# {evidence.kernel} against its peers", ""]
    for state in ("cold", "warm"):
        table = cells(evidence, state)
        for ours in names["ours"]:
            rows = ratios(evidence, ours, state, names["peer"])
            if rows:
                parts += [f"## {ours}, {state}", "", _headline(rows), "", *_table(evidence, table, ours, rows, names), ""]
    parts += ["## How it was measured", "", *_method(evidence)]
    wrong = [one for one in evidence.samples if one.problem]
    parts += [f"- void: {one.variant} at {one.point}, generation {one.generation}: {one.problem}" for one in wrong[:20]]
    parts += [f"- not here: {name}: {why}" for name, why in evidence.missing.items()]
    return "\n".join(parts) + "\n"


def _by_role(evidence: PeerEvidence) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"ours": [], "peer": [], "ceiling": []}
    for name, variant in evidence.variants.items():
        found[variant.role].append(name)
    return found


def _headline(rows: Sequence[Ratio]) -> str:
    points = [one for one in rows if one.point]
    worst = min(points, key=lambda one: one.value)
    mean = rows[-1] if not rows[-1].point else None
    text = f"geometric mean {_text(mean)} of the best peer, n = {count(mean.n, 'generation')}; " if mean else ""
    middle = median(one.value for one in points)
    return f"{text}{len(points)} points, lowest {worst.value:.3f}x at {worst.point}, median {middle:.3f}x"


def _text(one: Ratio) -> str:
    return f"{one.value:.3f}x" + (f" [{one.interval.low:.3f}, {one.interval.high:.3f}]" if one.interval else "")


def _table(
    evidence: PeerEvidence,
    table: Mapping[tuple[str, str], Cell],
    ours: str,
    rows: Sequence[Ratio],
    names: Mapping[str, Sequence[str]],
) -> list[str]:
    others = [*names["peer"], *names["ceiling"]]
    header = ["point", "MB", f"{ours} µs", *(f"{name} µs" for name in others), "best peer", "best / ours", "n", "error"]
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    for one in rows:
        if not one.point:
            mean = ["**geometric mean**", "", number(one.ours_us), *("" for _ in others), number(one.best_us), _text(one)]
            lines.append("| " + " | ".join([*mean, str(one.n), ""]) + " |")
            continue
        cell = table[ours, one.point]
        times = [number(found.us) if (found := table.get((name, one.point))) else "" for name in others]
        megabytes = f"{evidence.moved[one.point] / 1e6:.0f}"
        row = [one.point, megabytes, number(one.ours_us), *times, one.best, _text(one), str(one.n), f"{cell.error:.2g}"]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def _method(evidence: PeerEvidence) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(evidence.software.items()))
    rounds = (
        f"- {count(evidence.generations, 'generation')} of fresh workers, one a kernel, all up at once; in each a warm-up "
        "round, one forwards and one backwards. A time is the geometric mean over generations of the rounds' medians of "
        f"{evidence.replays} replays of a CUDA graph. cold: inputs rotate past three times the L2; warm: one input."
    )
    ratio = (
        "- best / ours: the time of the peer that is fastest at the point over ours, 95 % t interval over generations. "
        "error: ‖out - ref‖ / ‖ref‖ against an fp32 reference that reads the same cache."
    )
    return [f"- {evidence.device}; {versions}; {evidence.written}", rounds, ratio]
