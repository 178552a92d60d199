"""Two bar charts as PNG: the hot kernels of a profile, and the difference of two arms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import ProfileError
from harness.profiles.difference import Difference, Match
from harness.profiles.model import Profile
from harness.vocabulary import Phase

__all__ = ["DIFFERENCE_NAME", "TOP_NAME", "draw_difference", "draw_top"]

TOP_NAME = "top-kernels.png"
DIFFERENCE_NAME = "difference.png"
BARS = 15
_NAME = 52
# Told apart in print and by readers who do not see red and green.
_PHASE_COLOURS = {
    Phase.PREFILL: "#4477aa",
    Phase.DECODE: "#ee6677",
    Phase.OTHER: "#ccbb44",
    Phase.UNATTRIBUTED: "#bbbbbb",
}
_SLOWER, _FASTER = "#cc6677", "#44aa99"


def draw_top(path: Path, profile: Profile) -> None:
    """The longest rows of all devices as shares of busy time, coloured by phase. Raises ProfileError."""
    rows = profile.rows[:BARS]
    several = len(profile.devices) > 1
    labels = [_short(f"GPU {row.device}: {row.name}" if several else row.name) for row in rows]
    values = [profile.share(row.total_ns) * 100 for row in rows]
    texts = [f"{value:.1f} %, {row.calls} x {row.mean_us:.1f} us" for value, row in zip(values, rows, strict=True)]
    legend = {phase.value: _PHASE_COLOURS[phase] for phase in _PHASE_COLOURS if any(row.phase is phase for row in rows)}
    _bars(
        path,
        title=f"{profile.label}: hot kernels",
        axis="share of GPU-busy time (%)",
        labels=labels,
        values=values,
        colours=[_PHASE_COLOURS[row.phase] for row in rows],
        texts=texts,
        legend=legend,
    )


def draw_difference(path: Path, difference: Difference) -> None:
    """The largest changes of time, in ms, and what is new or vanished. Raises ProfileError."""
    pairs = [pair for pair in difference.pairs if pair.change_ns][:BARS]
    labels = [_short(pair.name if pair.match is Match.BOTH else f"{pair.match}: {pair.name}") for pair in pairs]
    values = [pair.change_ns / 1e6 for pair in pairs]
    texts = [f"{pair.change_ns / 1e6:+.3f} ms, {pair.phase}" for pair in pairs]
    colours = [_SLOWER if value > 0 else _FASTER for value in values]
    title = f"{difference.before.label} to {difference.after.label}: {difference.busy_change_ns / 1e6:+.3f} ms busy"
    _bars(
        path,
        title=title,
        axis="change of kernel time (ms)",
        labels=labels,
        values=values,
        colours=colours,
        texts=texts,
        legend={"more": _SLOWER, "less": _FASTER},
    )


def _short(name: str) -> str:
    # matplotlib reads $ as mathematics.
    name = name.replace("$", r"\$")
    return name if len(name) <= _NAME else f"{name[: _NAME // 2 - 2]}...{name[-_NAME // 2 + 2 :]}"


def _bars(
    path: Path,
    *,
    title: str,
    axis: str,
    labels: Sequence[str],
    values: Sequence[float],
    colours: Sequence[str],
    texts: Sequence[str],
    legend: dict[str, str],
) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - only charts need it, and it is slow
        from matplotlib.figure import Figure  # noqa: PLC0415
        from matplotlib.patches import Patch  # noqa: PLC0415
    except ImportError as error:
        raise ProfileError(f"charts need matplotlib ({error}): pip install matplotlib, or give --no-charts") from error
    figure = Figure(figsize=(11, 1.6 + 0.34 * max(len(labels), 1)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    places = range(len(labels))
    bars = axes.barh(places, values, color=list(colours))
    axes.bar_label(bars, labels=list(texts), padding=3, fontsize=8)
    axes.set_yticks(places, labels, fontsize=8, family="monospace")
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.margins(x=0.28)
    axes.set_xlabel(axis)
    axes.set_title(title, fontsize=10)
    if len(legend) > 1:
        axes.legend(handles=[Patch(color=colour, label=name) for name, colour in legend.items()], fontsize=8, loc="lower right")
    try:
        figure.savefig(path, dpi=120, metadata={"Software": None})
    except OSError as error:
        raise ProfileError(f"cannot write {path}: {error.strerror or error}") from error
