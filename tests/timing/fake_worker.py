"""A worker whose device is a FakeGpu: run as worker.py is, with the arguments that it gets."""

from __future__ import annotations

import sys

from harness.timing import serving, worker
from tests.timing.fake_gpu import FakeGpu

GPU = FakeGpu()


def main() -> None:
    serving.open_device = lambda _kind: GPU
    # By this name the workload file finds the device of its process.
    sys.modules["fake_device"] = sys.modules[__name__]
    serving.serve(*worker.open_pipes(sys.argv[2:]))


if __name__ == "__main__":
    main()
