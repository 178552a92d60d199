"""Checks and times the kernels on a GPU: python -m upkernel.paged_decode.bench [--points NAME] [--json FILE]

Method: one CUDA graph holds one call per input set; the sets rotate over at least 3x the L2 (cold), pages are shuffled,
tables and lengths are part of a set. A time is the duration of one replay divided by its calls; the table gives the
median of the replays with minimum and maximum. Outputs are poisoned with NaN and compared with the fp32 reference before
and after the timed replays, and a result faster than bytes / 4.8 TB/s is void. The ceiling (`read`) is a kernel that
only loads the same number of bytes, best of several launch settings, measured in the same process.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from .arguments import Arguments
from .cuda_build import Build, compile_library
from .cuda_kernel import CudaPagedDecode
from .inputs import Case, Inputs, make_inputs, ragged
from .reference import paged_decode_reference, relative_error
from .timing import ROTATE_BYTES, Timing, pure_read, time_graph

PEAK = 4.8e12  # HBM3e of the H200, data sheet
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


def grid_points() -> list[Case]:
    """The points of the baseline table, then ragged batches and other page sizes."""
    shapes = [(32, 8, 1, 1024), (32, 8, 1, 8192), (32, 8, 1, 32768), (32, 8, 1, 131072), (32, 8, 4, 8192)]
    shapes += [(32, 8, 16, 2048), (32, 8, 16, 8192), (32, 8, 64, 1024), (32, 8, 64, 4096), (32, 8, 128, 2048)]
    shapes += [(32, 8, 256, 512), (64, 8, 1, 8192), (64, 8, 1, 32768), (64, 8, 16, 8192), (64, 8, 64, 4096)]
    shapes += [(32, 32, 1, 8192), (32, 32, 1, 32768), (32, 32, 16, 8192), (32, 32, 64, 4096)]
    points = [Case((n,) * b, hq, hkv, kv_dtype=kv) for kv in (BF16, FP8) for hq, hkv, b, n in shapes]
    for kv in (BF16, FP8):
        points.append(Case(ragged(16, 8192), 32, 8, kv_dtype=kv))
        points.append(Case(ragged(64, 4096), 32, 8, kv_dtype=kv))
        points += [Case((8192,) * 16, 32, 8, kv_dtype=kv, page=p) for p in (1, 64)]
    return points


def build_for(case: Case, **tuning: int | None) -> Build:
    """The specialisation that serves a case."""
    name = {torch.float16: "float16", BF16: "bfloat16", FP8: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2"}
    return Build(name[case.q_dtype], name[case.kv_dtype], case.head_dim, case.heads_q // case.heads_kv, **tuning)


def reference_of(case: Case, x: Inputs) -> torch.Tensor:
    """fp32 output for one input set."""
    return paged_decode_reference(*x.args(), **case.options)[0]


def triton_kernel() -> Callable[..., torch.Tensor]:
    """The Triton kernel, called as a CudaPagedDecode is, with scratch of its own."""
    from .triton_launch import launch, scratch_bytes  # noqa: PLC0415  a quick CUDA comparison does without

    kept: list[torch.Tensor] = []

    def call(*inputs: torch.Tensor, **options: object) -> torch.Tensor:
        a = Arguments(*inputs, **options)
        if not kept:
            kept.append(torch.full((scratch_bytes(a),), 255, dtype=torch.uint8, device=a.q.device))
        launch(a, kept[0])
        return a.out

    return call


def measure(
    case: Case, kernel: Callable[..., torch.Tensor], sets: list[Inputs], refs: list[torch.Tensor], replays: int
) -> dict:
    """Errors before and after, and the timing, of one kernel on one point."""

    def call(x: Inputs) -> None:
        kernel(*x.args(), x.out, **case.options)

    def worst() -> float:
        return max(relative_error(x.out, r) if not x.out.isnan().any() else math.nan for x, r in zip(sets, refs, strict=False))

    def poison() -> None:
        for x in sets:
            x.out.fill_(math.nan)

    poison()
    for x in sets[: len(refs)]:
        call(x)
    torch.cuda.synchronize()
    before = worst()
    timing: Timing = time_graph([lambda x=x: call(x) for x in sets], replays, before_each=poison)
    after = worst()
    row = {"err_before": before, "err_after": after, **timing.as_dict()}
    row["void"] = None
    if not (after < 0.02 and before < 0.02):
        row["void"] = "wrong result"
    elif timing.median_us * 1e-6 < case.kv_bytes / PEAK:
        row["void"] = "faster than the memory"
    return row


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns 0, or 1 if any result is wrong or void."""
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--filter", default="", help="only points whose label contains one of these, comma-separated")
    ap.add_argument("--kernel", choices=("cuda", "triton"), default="cuda")
    ap.add_argument("--tuning", action="append", default=[], help="kind:warps,tokens,stages,blocks_per_sm[,min_tiles]")
    ap.add_argument("--replays", type=int, default=12)
    ap.add_argument("--dependent", action="store_true", help="programmatic dependent launch between the calls")
    ap.add_argument("--define", action="append", default=[], help="extra macro for the kernel, for experiments")
    ap.add_argument("--grid", type=int, help="number of blocks")
    ap.add_argument("--min-tiles", type=int, default=None)
    ap.add_argument("--no-read", action="store_true", help="skip the ceiling, for quick comparisons of variants")
    ap.add_argument("--json", type=Path)
    args = ap.parse_args(argv)
    wanted = [w.strip() for w in args.filter.split(",") if w.strip()]
    points = [c for c in grid_points() if not wanted or any(w in c.label for w in wanted)]

    def variants(case: Case) -> list[tuple[str, Build, int]]:
        found = []
        for text in args.tuning or ["any:"]:
            kind, _, numbers = text.partition(":")
            if kind not in ("any", case.label.split()[0]):
                continue
            v = [int(x) for x in numbers.split(",") if x]
            names = ("warps", "tokens", "stages", "blocks_per_sm")
            build = replace(build_for(case, **dict(zip(names, v, strict=False))), extra=tuple(f"-D{d}" for d in args.define))
            found.append((numbers or "default", build, v[4] if len(v) > 4 else 0))
        return found

    # Group sizes that round up to the same number of column tiles share a library.
    builds = {replace(b, group=8 * -(-b.group // 8)) for c in points for _, b, _ in variants(c)}
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(compile_library, builds if args.kernel == "cuda" else ()))

    rows, failed = [], False
    ceilings: dict[int, dict] = {}
    for case in points:
        count = max(2, math.ceil(ROTATE_BYTES / case.kv_bytes))
        sets = [make_inputs(case, seed, poison=False, spare=0) for seed in range(count)]
        # Two references are enough to notice a wrong kernel; all sets are timed and checked for unwritten outputs.
        refs = [reference_of(case, x) for x in sets[:2]]
        if case.kv_bytes not in ceilings:
            skip = {"median_us": math.nan}
            ceilings[case.kv_bytes] = skip if args.no_read else pure_read(case.kv_bytes, count, args.replays)
        read = ceilings[case.kv_bytes]
        for name, build, min_tiles in variants(case):
            extra = {"min_tiles": min_tiles or args.min_tiles} if (min_tiles or args.min_tiles) else {}
            cuda = functools.partial(CudaPagedDecode, build, grid=args.grid, dependent=args.dependent, **extra)
            kernel = triton_kernel() if args.kernel == "triton" else cuda()
            row = measure(case, kernel, sets, refs, args.replays)
            row |= {
                "kernel": args.kernel,
                "point": case.label,
                "variant": name,
                "bytes": case.kv_bytes,
                "sets": count,
                "read_us": read["median_us"],
            }
            row["of_read"] = read["median_us"] / row["median_us"]
            rows.append(row)
            failed |= row["void"] is not None
            print(
                f"{case.label:28s} {name:16s} {row['median_us']:8.2f} us [{row['min_us']:.2f}, {row['max_us']:.2f}]"
                f"  read {read['median_us']:8.2f}  {100 * row['of_read']:5.1f} %  err {row['err_after']:.4f}"
                f"{'  VOID: ' + row['void'] if row['void'] else ''}",
                flush=True,
            )
        del sets, refs
        torch.cuda.empty_cache()
    if args.json:
        meta = {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "argv": sys.argv[1:] if argv is None else argv,
            "rotate_bytes": ROTATE_BYTES,
            "ceilings": ceilings,
        }
        args.json.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
