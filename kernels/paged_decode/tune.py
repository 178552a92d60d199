"""Times tiles of the Triton kernel beside the CUDA kernel: python -m upkernel.paged_decode.tune [--filter TEXT] [--json FILE]

Method as in bench.py with fewer replays: cold L2, one CUDA graph a tile, median. Every compile is done by the call before the
timing, so the first run takes minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import torch

from .arguments import Arguments
from .bench import build_for, grid_points, reference_of
from .cuda_kernel import CudaPagedDecode
from .inputs import Case, make_inputs
from .reference import relative_error
from .timing import ROTATE_BYTES, time_graph
from .triton_launch import Tile, launch, scratch_bytes

__all__ = ["TILES", "tune"]

TILES = (
    *(Tile(64, 2, 2, 4), Tile(64, 2, 3, 2), Tile(64, 2, 3, 4), Tile(64, 2, 3, 8), Tile(64, 2, 4, 4)),
    *(Tile(32, 1, 3, 8), Tile(128, 4, 2, 2)),
)


def tune(case: Case, replays: int) -> list[dict]:
    """One row for the CUDA kernel and one for each tile: median µs, and the error against the fp32 reference."""
    count = max(2, math.ceil(ROTATE_BYTES / case.kv_bytes))
    sets = [make_inputs(case, seed, poison=False, spare=0) for seed in range(count)]
    ref = reference_of(case, sets[0])
    calls = [Arguments(*x.args(), x.out) for x in sets]
    cuda = CudaPagedDecode(build_for(case))
    timing = time_graph([lambda x=x: cuda(*x.args(), x.out) for x in sets], replays)
    rows = [{"kernel": "cuda", "us": timing.median_us, "err": relative_error(sets[0].out, ref)}]
    for tile in TILES:
        scratch = torch.full((scratch_bytes(calls[0], tile),), 255, dtype=torch.uint8, device="cuda")
        timing = time_graph([lambda a=a, s=scratch, t=tile: launch(a, s, t) for a in calls], replays)
        rows.append({"kernel": "triton", "tile": str(tile), "us": timing.median_us, "err": relative_error(sets[0].out, ref)})
    return [{"point": case.label, "n": replays, **row} for row in rows]


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns 0."""
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--filter", default="", help="only points whose label contains this")
    ap.add_argument("--replays", type=int, default=5)
    ap.add_argument("--json", type=Path)
    args = ap.parse_args(argv)
    rows = []
    for case in (c for c in grid_points() if args.filter in c.label):
        found = sorted(tune(case, args.replays), key=lambda row: row["us"])
        rows += found
        for row in found:
            tile = row.get("tile", "CUDA kernel")
            print(f"{case.label:28s} {row['us']:8.2f} us (n = {args.replays}) err {row['err']:.4f} {tile}")
        torch.cuda.empty_cache()
    if args.json:
        args.json.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
