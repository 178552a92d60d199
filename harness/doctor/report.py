"""All probes in one list, and as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from harness.arms.probes import Probe, ProbeState, cpu_probes, read_machine
from harness.doctor.host import host_probes, index_probe
from harness.doctor.tools import tool_probes
from harness.paths import Paths

__all__ = ["examine", "table"]


def examine(paths: Paths) -> tuple[Probe, ...]:
    """Every probe of this machine."""
    installed = any(paths.environments.glob("*/complete.json"))
    needs = cpu_probes(read_machine(paths.environments))
    if installed:
        # The space that was needed is taken already.
        needs = tuple(_relaxed(one) if one.name == "disk" else one for one in needs)
    return (*needs, *tool_probes(), *host_probes(), index_probe(needed=not installed))


def _relaxed(probe: Probe) -> Probe:
    return replace(probe, state=ProbeState.WARN) if probe.state is ProbeState.FAIL else probe


def table(probes: Iterable[Probe]) -> str:
    """One line a probe, and under it what to do where something is to be done."""
    probes = tuple(probes)
    width = max(len(one.name) for one in probes)
    lines: list[str] = []
    for one in probes:
        lines.append(f"{one.state.value:<6}  {one.name:<{width}}  {one.found}")
        if one.remedy:
            lines.append(f"{'':6}  {'':{width}}  -> {one.remedy}")
    return "\n".join(lines)
