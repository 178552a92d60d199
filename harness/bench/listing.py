"""What bench_kernels can measure, as text."""

from __future__ import annotations

from harness.bench.peers import list_peer_files, peer_file
from harness.paths import Paths
from harness.timing.workfile import Workfile
from harness.workloads.kernel_reader import kernel_workload_file, list_kernel_workloads, read_workfile

__all__ = ["list_kernels"]


def list_kernels(paths: Paths) -> str:
    """Workloads and kernels, with why, points and links. Raises WorkloadError for a file that cannot be read."""
    lines = ["kernel workloads (--workload NAME):"]
    for name in list_kernel_workloads(paths):
        lines += _described(name, read_workfile(kernel_workload_file(paths, name)))
    lines.append("kernels of this repository (KERNEL):")
    for name in list_peer_files(paths):
        work = read_workfile(peer_file(paths, name))
        lines += _described(name, work)
        lines += [f"    {key:<16} {variant['role']:<8} {variant.get('what', '')}" for key, variant in work.variants.items()]
    return "\n".join(lines)


def _described(name: str, work: Workfile) -> list[str]:
    points = list(work.by_name)
    return [
        f"  {name}: {work.why}",
        f"    {len(points)} points: {', '.join(points[:4])}{', ...' if len(points) > 4 else ''}",
        *(f"    {link}" for link in work.links),
    ]
