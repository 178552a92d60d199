"""Times that no kernel can beat."""

from __future__ import annotations

from .device import Device

__all__ = ["below_floor", "floor_us"]

# Of the time of a kernel that does nothing: below it, nothing was launched. Replays of such a kernel vary by a tenth.
LAUNCH_SHARE = 0.8


def floor_us(device: Device, moved: int, flops: int, *, cold: bool) -> float:
    """The largest of: bytes / peak bandwidth (cold only, the L2 is faster), FLOPs / peak rate, and most of an empty launch."""
    floors = [device.launch_us * LAUNCH_SHARE]
    if cold and device.peak_bytes:
        floors.append(moved / device.peak_bytes * 1e6)
    if device.peak_flops:
        floors.append(flops / device.peak_flops * 1e6)
    return max(floors)


def below_floor(device: Device, us: float, moved: int, flops: int, *, cold: bool) -> str:
    """Why the time cannot be true; empty when it can."""
    floor = floor_us(device, moved, flops, cold=cold)
    if us >= floor:
        return ""
    return (
        f"{us:.2f} µs is below the floor of {floor:.2f} µs on {device.name} ({moved} bytes, {flops} FLOPs, an empty launch "
        f"takes {device.launch_us:.2f} µs): the work is not in the time"
    )
