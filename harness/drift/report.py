"""The drift table, as Markdown that a terminal shows well enough, and the same as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence

from harness.drift.model import PatchDrift, SeriesDrift, TargetKind
from harness.vocabulary import DriftState

__all__ = ["SCHEMA", "render_json", "render_table"]

SCHEMA = 1
HEADER = ("series", "status", "patches for", "on", "source", "state", "what a person has to do")
SHORT = 12  # digits of a commit


def render_table(rows: Sequence[SeriesDrift]) -> str:
    """One line a series and target; then, for every row that is not clean, each patch with its files and hunks."""
    cells = [HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADER))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join(" " + "-" * width + " " for width in widths) + "|")
    for row in rows:
        details = list(_details(row))
        if details:
            lines += ["", f"{row.series} on {row.target}:", *(f"  {line}" for line in details)]
    return "\n".join(lines)


def render_json(rows: Sequence[SeriesDrift]) -> str:
    """Everything the table says, and the full commit hashes."""
    document = {"schema": SCHEMA, "rows": [dataclasses.asdict(row) for row in rows]}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _cells(row: SeriesDrift) -> tuple[str, ...]:
    ref = f" ({row.commit[:SHORT]})" if row.kind is TargetKind.REF and row.commit else ""
    return (
        row.series,
        row.status or "-",
        row.patches_for,
        row.target + ref,
        row.source or "-",
        row.state or "unknown",
        _work(row),
    )


def _work(row: SeriesDrift) -> str:
    if row.state is None:
        return "see below"
    port = f"port: `nox -s port -- {row.series} --to {row.target}`"
    own_port = row.patches_for == row.target
    match row.state:
        case DriftState.CLEAN:
            return "nothing"
        case DriftState.CLEAN_3WAY:
            return "nothing by hand; " + port if row.kind is TargetKind.PIN and not own_port else "nothing by hand"
        case DriftState.LANDED:
            return "upstream has it: is the series done?"
        case DriftState.CONFLICT | DriftState.TARGET_GONE:
            return port if row.kind is TargetKind.PIN and not own_port else "rebase"


def _details(row: SeriesDrift) -> Iterator[str]:
    if row.problem:
        yield f"not looked at: {row.problem}"
    if row.state not in {None, DriftState.CLEAN}:
        for patch in row.patches:
            yield from _patch(row, patch)
    if row.last_good is not None:
        good = row.last_good
        ended = f"{good.ended_by[:SHORT]} ({good.subject})"
        looked = f"{good.looked} commit{'s' * (good.looked != 1)} that touch its files looked at"
        if good.commit is None:
            yield f"applied at none of upstream's commits since its base; the first that touches its files is {ended}; {looked}"
        else:
            yield f"last applied at {good.commit[:SHORT]}; ended by {ended}; {looked}"
    if row.no_history:
        yield row.no_history


def _patch(row: SeriesDrift, patch: PatchDrift) -> Iterator[str]:
    whose = "" if patch.series == row.series else f"{patch.series} "
    followed = f"; under the new name: {patch.followed}" if patch.followed else ""
    yield f"{whose}{patch.name}: {patch.state}{followed}"
    yield from (f"  {move}" for move in patch.moves)
    gone = {move.old for move in patch.moves if move.new is None}
    yield from (f"  {conflict}" for conflict in patch.conflicts if conflict.path not in gone)
