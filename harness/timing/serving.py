"""The worker's loop: a request is a JSON line, its answers are JSON lines, one for each point.

{"do": "measure", "points": [...], "settings": {...}, "keep_bytes": N} gives {"result": {...}}, {"failed": {...}} or
{"skipped": {...}} for each point in turn, then {"done": true}. Points stay ready for the next request as far as keep_bytes
goes; the others are made anew each time.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from .device import Device, open_device
from .point import Prepared, Settings, measure, prepare
from .workfile import Workfile, load_workfile

__all__ = ["Worker", "serve"]


class Worker:
    """One workload (and variant) on one device."""

    def __init__(self, device: Device, work: Workfile, variant: str | None) -> None:
        self.device = device
        self.work = work
        self.variant = variant
        self._kept: dict[tuple[str, Settings], Prepared] = {}

    @property
    def needs(self) -> tuple[str, ...]:
        """Packages that the variant cannot do without."""
        return tuple(self.work.variants[self.variant].get("needs", ())) if self.variant else ()

    def hello(self) -> dict[str, Any]:
        """What the harness should know before it asks."""
        torch = sys.modules.get("torch")
        return {
            "ready": True,
            "device": self.device.name,
            "mode": self.device.mode,
            "l2_bytes": self.device.l2_bytes,
            "memory_bytes": self.device.memory_bytes,
            "launch_us": self.device.launch_us,
            "torch": str(getattr(torch, "__version__", "none")),
            "python": platform.python_version(),
            "packages": _versions(self.needs),
        }

    def point(self, name: str, settings: Settings, keep_bytes: int) -> dict[str, Any]:
        """Measure one point; what it raises becomes {"failed": ...}."""
        point = self.work.by_name.get(name)
        if point is None:
            return {"failed": {"point": name, "outcome": "crashed", "detail": f"the workload has no point {name!r}"}}
        reason = self.work.covers(point, self.variant) if self.work.covers and self.variant else ""
        if reason:
            return {"skipped": {"point": name, "reason": reason}}
        try:
            ready = self._ready(point, settings, keep_bytes)
            return {"result": measure(self.device, self.work, ready, settings)}
        except Exception as error:  # noqa: BLE001 -- whatever an engine raises is an outcome of this point
            traceback.print_exc()
            full = "OutOfMemory" in type(error).__name__ or isinstance(error, MemoryError)
            outcome = "out-of-memory" if full else "crashed"
            return {"failed": {"point": name, "outcome": outcome, "detail": f"{type(error).__name__}: {error}"[:2000]}}
        finally:
            self._forget(keep_bytes)

    def _ready(self, point: Mapping[str, Any], settings: Settings, keep_bytes: int) -> Prepared:
        key = (str(point["name"]), settings)
        if key not in self._kept:
            if self._held() > keep_bytes:
                self._forget(0)
            self._kept[key] = prepare(self.device, self.work, point, self.variant, settings)
        return self._kept[key]

    def _held(self) -> int:
        return sum(one.bytes_held for one in self._kept.values())

    def _forget(self, keep_bytes: int) -> None:
        """Drop what was made last while too much is held: what was made first is asked for first the next time."""
        dropped = False
        while self._kept and self._held() > keep_bytes:
            self._kept.popitem()
            dropped = True
        if dropped:
            self.device.release()


def _versions(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of the installed packages of these names. Raises ModuleNotFoundError for one that is not there."""
    found = {}
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"{name} is not installed in {sys.prefix}")
        try:
            found[name] = importlib.metadata.version({"flashinfer": "flashinfer-python"}.get(name, name))
        except importlib.metadata.PackageNotFoundError:
            found[name] = "from a source tree"
    return found


def serve(arguments: Mapping[str, str], requests: TextIO, replies: TextIO) -> None:
    """Open the device and the workload, then answer until the requests end."""

    def reply(message: Mapping[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    device = open_device(arguments["device"])
    work = load_workfile(Path(arguments["file"]))
    worker = Worker(device, work, arguments.get("variant"))
    reply(worker.hello())
    for line in requests:
        request = json.loads(line)
        settings = Settings(**{**request["settings"], "states": tuple(request["settings"]["states"])})
        for name in request["points"] or list(work.by_name):
            reply(worker.point(name, settings, int(request["keep_bytes"])))
        reply({"done": True})
