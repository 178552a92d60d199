"""A GPU in numpy, with a clock of its own: streams, capture and replay as CUDA has them, and times as the kernels say."""

from __future__ import annotations

import numpy as np

from harness.timing.device import Difference, Program, Span


class FakeGpu:
    """harness.timing.device.Device. A kernel is launch(function, µs): executed now, or recorded while a stream is captured."""

    name = "Fake GPU"
    mode = "graph"
    l2_bytes = 4096
    memory_bytes = 10**9
    peak_bytes = 1e12
    peak_flops = 1e15
    launch_us = 1.0

    def __init__(self):
        self.persisting = 0
        # What CUPTI would tell; None: it is not installed.
        self.recorded = None
        # Multiplies every time from now on: what a slower clock does.
        self.slowness = 1.0
        self._captured = None

    def launch(self, function, us, *, stream="timed", joined=True):
        """On another stream than the captured one it runs at once, as in CUDA; not joined, it ends after the span."""
        if self._captured is None or (stream != "timed" and joined):
            function()
        else:
            self._captured.append((function, us, joined))

    def record(self, calls, keep):
        for call in calls:
            call()
        self._captured = []
        try:
            outputs = [call() for call in calls]
        finally:
            captured, self._captured = self._captured, None
        names = tuple(getattr(function, "__name__", "kernel") for function, _, _ in captured)
        return Program(tuple(calls), outputs if keep else outputs[-1:], captured, names)

    def replay(self, program):
        inside = outside = 0.0
        for function, us, joined in program.graph:
            function()
            inside, outside = (inside + us, outside) if joined else (inside, outside + us)
        return Span(inside * self.slowness, outside)

    def spans(self, _program):
        return self.recorded

    def synchronize(self):
        pass

    def is_plain(self, value):
        return type(value) is np.ndarray

    def dtype(self, tensor):
        return str(tensor.dtype)

    def poison(self, tensors):
        for one in tensors:
            one.fill(np.nan)

    def difference(self, output, reference):
        if output.shape != reference.shape:
            return Difference(float("nan"), float("nan"))
        rows = np.linalg.norm(output - reference, axis=-1) / np.linalg.norm(reference, axis=-1)
        return Difference(float(np.linalg.norm(output - reference) / np.linalg.norm(reference)), float(rows.max()))

    def unwritten(self, tensors):
        return sum(bool(np.isnan(one).any()) for one in tensors)

    def fingerprints(self, tensors):
        return tuple(hash(one.tobytes()) for one in tensors)

    def shift(self, tensor, by):
        tensor[...] = np.roll(tensor.reshape(-1), by).reshape(tensor.shape)

    def persisting_change(self):
        return self.persisting

    def used_bytes(self):
        return 0

    def release(self):
        pass
