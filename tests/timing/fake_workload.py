"""A workload for fake_worker.py: a softmax whose times and faults come from the environment of its process (an arm's)."""

from __future__ import annotations

import json
import os
import sys
import time

WHY = "For tests."
LINKS = ("https://example.org/issue",)
POINTS = ({"name": "small", "us": 4.0}, {"name": "middle", "us": 20.0}, {"name": "large", "us": 100.0})
TOLERANCE = {"float64": 1e-9}
DEVICES = ("cuda", "cpu")
VARIANTS = {
    "mine": {"role": "ours", "what": "a kernel", "factor": 1.0},
    "quick": {"role": "peer", "what": "best at small", "factor": 1.2},
    "steady": {"role": "peer", "what": "best at large", "factor": 1.5},
    "absent": {"role": "peer", "what": "needs what is not there", "needs": ("surely_not_installed",)},
    "limit": {"role": "ceiling", "what": "reads only", "factor": 0.5, "checked": False},
}


def covers(point, variant):
    return "too large for it" if (point["name"], variant) == ("large", "quick") else ""


def make(point, device, seed, variant=None):
    import numpy as np

    settings = json.loads(os.environ.get("FAKE_ARM", "{}"))
    fault = settings.get("faults", {}).get(point["name"])
    if fault == "die":
        os._exit(3)
    if fault == "hang":
        time.sleep(600)
    if fault == "raise":
        raise ValueError("no such shape")
    if fault == "memory":
        raise MemoryError
    factor = settings.get("factor", 1.0) * (VARIANTS[variant]["factor"] if variant else 1.0)
    x = np.random.default_rng(seed).standard_normal((8, 64))
    return {
        "inputs": {"x": x},
        "fresh": ("x",),
        "out": np.empty_like(x),
        "us": point["us"] * factor,
        "wrong": fault == "wrong",
        "name": settings.get("kernel", "_ZN4fake7softmaxILi4EEEvPf"),
    }


def softmax(x):
    import numpy as np

    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def call(case):
    def kernel():
        case["out"][...] = softmax(case["inputs"]["x"]) * (1.1 if case["wrong"] else 1.0)

    kernel.__name__ = case["name"]
    # A worker's clock is its own, within 0.1 %, as that of a process is.
    offset = 1 + 0.001 * ((os.getpid() % 7) / 7 - 0.5)
    sys.modules["fake_device"].GPU.launch(kernel, case["us"] * offset)
    return case["out"]


def reference(case):
    return softmax(case["inputs"]["x"].copy())


def bytes_and_flops(_point):
    return 8192, 0
