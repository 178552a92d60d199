"""The rows of a profile's report, as text cells: the same for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.profiles.model import Category, DeviceTotals, HotRow, Profile
from harness.vocabulary import Phase

__all__ = [
    "Table",
    "categories_table",
    "headline",
    "kernels_table",
    "milliseconds",
    "notes_of",
    "percent",
    "phases_table",
    "tables_of",
]

PHASE_ORDER = (Phase.PREFILL, Phase.DECODE, Phase.OTHER, Phase.UNATTRIBUTED)
NOT_A_BENCHMARK = "Times of a profiled run: recording slows the host down, so they are never benchmark results."


@dataclass(frozen=True, slots=True)
class Table:
    """`right` names the columns that hold numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int]


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def milliseconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.3f}"


def _microseconds(nanoseconds: float) -> str:
    return f"{nanoseconds / 1000:.2f}"


def headline(profile: Profile) -> str:
    """One line: how busy, how much is unattributed, where it came from."""
    unattributed = profile.phase_ns(Phase.UNATTRIBUTED)
    attention = sum(row.total_ns for row in profile.rows if row.category is Category.ATTENTION)
    calls = sum(one.kernels for one in profile.devices)
    count = len(profile.devices)
    where = f"{count} GPUs" if count > 1 else f"GPU {profile.devices[0].device}" if count else "no GPU"
    return (
        f"{profile.label}: {milliseconds(profile.busy_ns)} ms busy on {where}, {calls} kernels; attention "
        f"{percent(profile.share(attention))} of it, unattributed {percent(profile.share(unattributed))} ({profile.tool})"
    )


def tables_of(profile: Profile, top: int) -> tuple[Table, ...]:
    """For each device: phases, categories, the `top` kernels."""
    return tuple(
        table
        for device in profile.devices
        for table in (phases_table(profile, device), categories_table(profile, device), kernels_table(profile, device, top))
    )


def _own(profile: Profile, device: DeviceTotals) -> tuple[HotRow, ...]:
    return tuple(row for row in profile.rows if row.device == device.device)


def _share(nanoseconds: int, of: int) -> str:
    return percent(nanoseconds / of) if of else "n/a"


def phases_table(profile: Profile, device: DeviceTotals) -> Table:
    """Phases, what overlaps, and the busy time they add up to."""
    own = _own(profile, device)
    rows = []
    for phase in PHASE_ORDER:
        mine = [row for row in own if row.phase is phase]
        total = sum(row.total_ns for row in mine)
        steps = profile.steps.get(phase, 0) if phase is not Phase.UNATTRIBUTED else 0
        if not mine and not steps and phase is not Phase.UNATTRIBUTED:
            continue
        per_step = f"{_microseconds(total / steps)} ({steps} steps)" if steps and len(profile.devices) == 1 else "n/a"
        rows.append(
            (phase.value, _share(total, device.busy_ns), milliseconds(total), str(sum(row.calls for row in mine)), per_step)
        )
    rows.append(("overlap", _share(device.overlap_ns, device.busy_ns), milliseconds(device.overlap_ns), "", ""))
    rows.append(("busy", _share(device.busy_ns, device.busy_ns), milliseconds(device.busy_ns), "", ""))
    idle = device.span_ns - device.busy_ns
    title = (
        f"GPU {device.device}: busy {milliseconds(device.busy_ns)} ms of {milliseconds(device.span_ns)} ms "
        f"({_share(idle, device.span_ns)} idle), {device.kernels} kernels, {device.copies} copies and sets"
    )
    return Table(title, ("phase", "share", "ms", "calls", "us a step"), tuple(rows), frozenset({1, 2, 3, 4}))


def categories_table(profile: Profile, device: DeviceTotals) -> Table:
    """What kinds of kernels take the time, of everything and within each phase."""
    own = _own(profile, device)
    phases = [phase for phase in PHASE_ORDER if any(row.phase is phase for row in own)]
    sums = {phase: sum(row.total_ns for row in own if row.phase is phase) for phase in phases}
    found = []
    for category in Category:
        mine = [row for row in own if row.category is category]
        total = sum(row.total_ns for row in mine)
        if mine:
            cells = [_share(sum(row.total_ns for row in mine if row.phase is phase), sums[phase]) for phase in phases]
            found.append((total, (category.value, _share(total, device.busy_ns), milliseconds(total), *cells)))
    rows = tuple(cells for _, cells in sorted(found, key=lambda one: -one[0]))
    header = ("category", "share", "ms", *(f"of {phase}" for phase in phases))
    return Table(f"GPU {device.device}: by category", header, rows, frozenset(range(1, len(header))))


def kernels_table(profile: Profile, device: DeviceTotals, top: int) -> Table:
    """The longest `top` rows, one row for the rest, and the overlap: together the busy time."""
    own = _own(profile, device)
    rows = [_kernel(row, device) for row in own[:top]]
    rest = own[top:]
    if rest:
        total, calls = sum(row.total_ns for row in rest), sum(row.calls for row in rest)
        rows.append(
            (
                _share(total, device.busy_ns),
                milliseconds(total),
                str(calls),
                _microseconds(total / calls),
                "",
                "",
                "",
                f"({len(rest)} more rows)",
            )
        )
    rows.append((_share(device.overlap_ns, device.busy_ns), milliseconds(device.overlap_ns), "", "", "", "", "", "(overlap)"))
    return Table(
        f"GPU {device.device}: hot kernels, share of busy time",
        ("share", "ms", "calls", "mean us", "least to most us", "phase", "category", "kernel"),
        tuple(rows),
        frozenset({0, 1, 2, 3, 4}),
    )


def _kernel(row: HotRow, device: DeviceTotals) -> tuple[str, ...]:
    return (
        _share(row.total_ns, device.busy_ns),
        milliseconds(row.total_ns),
        str(row.calls),
        f"{row.mean_us:.2f}",
        f"{_microseconds(row.least_ns)} to {_microseconds(row.most_ns)}",
        row.phase.value,
        row.category.value,
        row.name,
    )


def notes_of(profile: Profile) -> Sequence[str]:
    """What a reader must know beside the numbers."""
    notes = list(profile.notes)
    if profile.between_steps_ns:
        notes.append(
            f"{percent(profile.share(profile.between_steps_ns))} of the busy time was launched between two steps (sampling, "
            "copies) and counts with the step before"
        )
    mixed = profile.steps.get(Phase.PREFILL, 0)
    if mixed:
        notes.append("a step with any prompt token counts as prefill, decoding requests in it included")
    notes.append(NOT_A_BENCHMARK)
    return notes
