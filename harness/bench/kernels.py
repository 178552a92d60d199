"""What a kernel workload needs of a bench session: its backend, and who watches the machine."""

from __future__ import annotations

from collections.abc import Mapping

from harness.arms.model import Arm
from harness.context import Context
from harness.runs.gpu_guards import watch_of_device
from harness.runs.kernel_backend import KernelBackend
from harness.vocabulary import Device, Slot
from harness.workloads.kernel_model import KernelWorkload

__all__ = ["kernel_backend"]


def kernel_backend(context: Context, arms: Mapping[Slot, Arm], workload: KernelWorkload, device: Device) -> KernelBackend:
    """Workers for these arms on one device; they measure the workload's points, which may be fewer than its file has."""
    return KernelBackend(
        arms=arms,
        workload=workload,
        device=device,
        root=context.paths.root,
        progress=context.progress,
        watch_of=watch_of_device(device),
        points=workload.points,
    )
