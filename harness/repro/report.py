"""The page of a reproduction: published numbers, measured numbers, and where each comes from."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reports.markdown import escape
from harness.reports.table import number
from harness.repro.measure import Measured, Reproduction
from harness.workloads.kernel_model import HOST_KEY, KernelWorkload, Published, point_key
from harness.workloads.model import EngineWorkload

__all__ = ["published_table", "render"]

# Of what an environment holds, the versions that numbers of a kernel or an engine depend on.
TOLD = ("vllm", "sglang", "sglang-kernel", "flashinfer-python", "torch", "triton", "transformers")
NOT_MEASURED = "not measured"


def render(workload: EngineWorkload | KernelWorkload, found: Reproduction) -> str:
    """Markdown; reads well in a terminal too."""
    versions = ", ".join(f"{name} {found.packages[name]}" for name in TOLD if name in found.packages)
    lines = [
        f"# {found.workload} on {found.pin}",
        "",
        workload.why.strip(),
        "",
        *(f"* {link}" for link in workload.links),
        "",
        f"Measured {found.written} on {found.device}; base {found.tip[:12]}; {versions or 'versions not known'}.",
        "",
    ]
    published = workload.published if isinstance(workload, KernelWorkload) else ()
    if published:
        lines += ["## Published beside measured", "", *_beside(published, found), ""]
    lines += ["## Measured", "", "median [lowest, highest] of all counted runs", "", *_measured(found), ""]
    if found.disturbed:
        lines += ["## Left out", "", *(f"* {escape(one)}" for one in found.disturbed), ""]
    return "\n".join(lines)


def published_table(workload: EngineWorkload | KernelWorkload) -> str:
    """What can be told without measuring."""
    published = workload.published if isinstance(workload, KernelWorkload) else ()
    if not published:
        return "nothing with a number was published about it, as far as the workload says"
    return "\n".join(_table(("published", "GPU", "point", "value", "source"), [(*_told(one), one.source) for one in published]))


def _told(one: Published) -> tuple[str, str, str, str]:
    return one.what, one.gpu, one.point or "all", f"{number(one.value)} {one.unit}"


def _beside(published: Sequence[Published], found: Reproduction) -> list[str]:
    """A number of another unit than µs stands beside the kernel's time all the same, which says so."""
    rows = [(*_told(one), _here(one, found), one.source) for one in published]
    return _table(("published", "GPU", "point", "value", "measured here", "source"), rows)


def _here(one: Published, found: Reproduction) -> str:
    if not one.point:
        return "see below"
    is_host = "host" in one.what.split()
    states = (HOST_KEY,) if is_host else ("cold", "warm")
    cells = [
        f"{state} {_cell(found.metrics[key])} µs" for state in states if (key := point_key(state, one.point)) in found.metrics
    ]
    other = "" if one.unit == "us" or not cells else "kernel time: "
    return other + (", ".join(cells) or NOT_MEASURED)


def _cell(one: Measured) -> str:
    return f"{number(one.median)} [{number(min(one.values))}, {number(max(one.values))}]"


def _measured(found: Reproduction) -> list[str]:
    """Points as rows and states as columns for a kernel; a metric a row for an engine."""
    states = [state for state in ("cold", "warm", HOST_KEY) if any(key.startswith(f"{state}/") for key in found.metrics)]
    rows: list[tuple[str, ...]] = []
    if not states:
        rows = [(key, _cell(one), str(len(one.values))) for key, one in found.metrics.items()]
        return _table(("metric", "value", "n"), rows)
    points = list(dict.fromkeys(key.partition("/")[2] for key in found.metrics if key.partition("/")[0] in states))
    for point in points:
        cells = [found.metrics.get(point_key(state, point)) for state in states]
        n = max(len(one.values) for one in cells if one is not None)
        rows.append((point, *(NOT_MEASURED if one is None else _cell(one) for one in cells), str(n)))
    return _table(("point", *(f"{state}, µs" for state in states), "n"), rows)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return lines + ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows]
