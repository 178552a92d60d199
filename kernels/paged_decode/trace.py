"""Where the cycles of one launch go: python -m upkernel.paged_decode.trace LABEL... (labels as bench.py prints them)

Builds the kernel with UPK_TRACE, which stores the clock of thread 0 of every block at numbered points (csrc, UPK_MARK), and
prints medians in cycles since the start of the block, cold (rotating input sets) and hot (one set). The marks cost a few
cycles each; never use times of such a build as results.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import torch

from .bench import ROTATE_BYTES, build_for, grid_points
from .cuda_kernel import CudaPagedDecode
from .inputs import Case, make_inputs

# In the order in which a block passes them.
POINTS = {0: "start", 8: "lengths asked", 9: "lengths", 1: "share", 2: "copies issued", 3: "query", 4: "first tile"}
POINTS |= {5: "tiles done", 11: "parts stored", 12: "barrier", 6: "row finished", 7: "end"}


def trace(case: Case, hot: bool) -> torch.Tensor:
    """Clock values ``[launches, grid, 16]``, zero where a block did not pass a point."""
    kernel = CudaPagedDecode(replace(build_for(case), extra=("-DUPK_TRACE",)))
    count = 1 if hot else max(2, math.ceil(ROTATE_BYTES / case.kv_bytes))
    sets = [make_inputs(case, seed, poison=False, spare=0) for seed in range(count)]
    found = []
    for _ in range(30 if hot else 2):
        for x in sets:
            kernel.trace = torch.zeros(kernel.grid, 16, dtype=torch.int64, device="cuda")
            kernel(*x.args(), x.out)
            found.append(kernel.trace)
    torch.cuda.synchronize()
    return torch.stack(found[len(found) // 2 :]).cpu()


def main(labels: list[str]) -> None:
    """Prints one block of lines a label."""
    for case in (c for c in grid_points() if c.label in labels):
        for hot in (False, True):
            clocks = trace(case, hot)
            since = (clocks - clocks[..., :1]).double()
            ran = clocks[..., 7] > 0
            # A block that merges the parts of a row spends its time after the last row.
            merged = ran & (since[..., 7] - since[..., 6] > 600)
            for name, which in (("all", ran), ("mergers", merged)):
                if which.any():
                    line = "  ".join(f"{text} {since[..., i][which].median():.0f}" for i, text in POINTS.items())
                    print(f"{case.label} {'hot' if hot else 'cold'} {name}: {line}")


if __name__ == "__main__":
    main(sys.argv[1:])
