"""Reports of a profile and of a difference, for a terminal and as Markdown with its charts."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from harness.profiles.difference import Difference, Match, Pair
from harness.profiles.model import Profile
from harness.profiles.tables import NOT_A_BENCHMARK, Table, headline, milliseconds, notes_of, tables_of

__all__ = ["difference_headline", "difference_table", "markdown", "profile_markdown", "profile_terminal", "terminal"]

WIDTH = 120
NAME_WIDTH = 70


def profile_terminal(profile: Profile, *, top: int) -> str:
    return terminal(headline(profile), tables_of(profile, top), notes_of(profile))


def profile_markdown(profile: Profile, *, top: int, charts: Sequence[str]) -> str:
    return markdown(headline(profile), tables_of(profile, top), notes_of(profile), charts)


def difference_headline(difference: Difference) -> str:
    """One line: the change of busy time, and what is new or gone."""
    before, after = difference.before, difference.after
    counts = {match: sum(pair.match is match for pair in difference.pairs) for match in Match}
    relative = f" ({difference.busy_change_ns / before.busy_ns * 100:+.1f} %)" if before.busy_ns else ""
    return (
        f"{before.label} -> {after.label}: busy {milliseconds(before.busy_ns)} -> {milliseconds(after.busy_ns)} ms{relative}; "
        f"{counts[Match.BOTH]} kernels in both, {counts[Match.NEW]} new, {counts[Match.VANISHED]} vanished"
    )


def difference_table(difference: Difference, top: int) -> Table:
    """The largest changes, one row for the rest, and the change of the overlap: together the change of busy time."""
    several = len(difference.before.devices) > 1
    rows = [_pair(pair, difference, several=several) for pair in difference.pairs[:top]]
    rest = difference.pairs[top:]
    if rest:
        rows.append(_sum_row(f"({len(rest)} more rows)", sum(pair.change_ns for pair in rest), difference))
    rows.append(_sum_row("(overlap)", difference.overlap_change_ns, difference))
    rows.append(_sum_row("(busy)", difference.busy_change_ns, difference))
    return Table(
        "Kernel by kernel, largest change first",
        ("change ms", "of busy", "ms", "calls", "mean us", "mean change", "phase", "", "kernel"),
        tuple(rows),
        frozenset({0, 1, 2, 3, 4, 5}),
    )


def _of(nanoseconds: int, difference: Difference) -> str:
    return f"{nanoseconds / difference.before.busy_ns * 100:+.2f} %" if difference.before.busy_ns else "n/a"


def _sum_row(name: str, change: int, difference: Difference) -> tuple[str, ...]:
    return (f"{change / 1e6:+.3f}", _of(change, difference), "", "", "", "", "", "", name)


def _pair(pair: Pair, difference: Difference, *, several: bool) -> tuple[str, ...]:
    means = [f"{total / calls / 1000:.2f}" if calls else "-" for total, calls in zip(pair.total_ns, pair.calls, strict=True)]
    change = pair.mean_change
    return (
        f"{pair.change_ns / 1e6:+.3f}",
        _of(pair.change_ns, difference),
        " -> ".join(milliseconds(one) for one in pair.total_ns),
        str(pair.calls[0]) if pair.calls[0] == pair.calls[1] else f"{pair.calls[0]} -> {pair.calls[1]}",
        " -> ".join(means),
        "n/a" if change is None else f"{change * 100:+.1f} %",
        pair.phase.value,
        "" if pair.match is Match.BOTH else pair.match.value,
        f"GPU {pair.device}: {pair.name}" if several else pair.name,
    )


def difference_notes(difference: Difference) -> tuple[str, ...]:
    notes = [*difference.notes]
    for profile in (difference.before, difference.after):
        notes += [f"{profile.label}: {note}" for note in profile.notes]
    notes.append(
        "One recording an arm: no spread between runs is known, so small changes may be noise. A verdict needs an experiment."
    )
    return (*notes, NOT_A_BENCHMARK)


def terminal(title: str, tables: Sequence[Table], notes: Sequence[str]) -> str:
    """Plain text in columns; long kernel names are cut in the middle, the files have them whole. Ends with a newline."""
    parts = [title, ""]
    for table in tables:
        cells = [tuple(_short(cell) for cell in row) for row in (table.header, *table.rows)]
        widths = [max(len(row[index]) for row in cells) for index in range(len(table.header))]
        parts.append(table.title)
        for row in cells:
            text = "  ".join(
                cell.rjust(width) if index in table.right else cell.ljust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            parts.append(f"  {text}".rstrip())
        parts.append("")
    for note in notes:
        parts += textwrap.wrap(note, WIDTH, initial_indent="note: ", subsequent_indent="      ", break_long_words=False)
    return "\n".join(parts) + "\n"


def _short(cell: str) -> str:
    if len(cell) <= NAME_WIDTH:
        return cell
    half = (NAME_WIDTH - 3) // 2
    return f"{cell[:half]}...{cell[-half:]}"


def markdown(title: str, tables: Sequence[Table], notes: Sequence[str], charts: Sequence[str]) -> str:
    """`charts` are names of PNG files beside the report. Ends with a newline."""
    parts = [f"**{_escape(title)}**", ""]
    parts += [part for chart in charts for part in (f"![{chart.removesuffix('.png').replace('-', ' ')}]({chart})", "")]
    for table in tables:
        rule = ["---:" if index in table.right else "---" for index in range(len(table.header))]
        parts += [f"### {_escape(table.title)}", "", _line(table.header), "| " + " | ".join(rule) + " |"]
        parts += [*(_line(row) for row in table.rows), ""]
    parts += [f"- {_escape(note)}" for note in notes]
    return "\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _escape(text: str) -> str:
    """Keep a cell in its column, and template brackets and underscores of kernel names as they are."""
    for character in ("\\", "|", "*", "_", "~", "`"):
        text = text.replace(character, f"\\{character}")
    return text.replace("<", "&lt;").replace(">", "&gt;")
