"""Say where the GPU time of a run goes: Nsight Systems around the engine's own script, as a table of hot kernels.

    nox -s profile -- --out DIR -- python -m vllm.entrypoints.cli.main bench latency --model ...
    nox -s profile -- -- python -m sglang.bench_one_batch --model-path ...
    nox -s profile -- --workload vllm/NAME --patched vllm/SERIES      an arm of this checkout
    nox -s profile -- --from FILE                                     an export, a report, or a trace of PyTorch's profiler
    nox -s profile -- --ncu KERNEL -- python ...                      Nsight Compute on one kernel of that run

What follows the second `--` is the command; it runs in the result's folder, so give absolute paths. The
scripts of vLLM and SGLang get their profiling options, which keep start-up out of the recording. The table counts kernels
replayed from CUDA graphs like any other; phases come from the engine's step ranges. It is kept, with a report and a chart, in
the folder of --out. --from needs no GPU, and for exports and traces no
nsys. Two tables are compared with `nox -s diff`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.context import Context
from harness.vocabulary import Device, ExitCode


def configure(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is profiled")
    what.add_argument("--from", dest="source", type=Path, metavar="FILE", help="read this recording; nothing is run")
    what.add_argument("--workload", metavar="NAME", help="a workload of workloads/, on an arm of this checkout")
    what.add_argument("--patched", metavar="SERIES|REF|PATH", default="base", help="the arm (default: %(default)s)")
    what.add_argument("--pin", metavar="PIN", default="bench", help="the arm's pin (default: %(default)s)")
    what.add_argument("--device", choices=[one.value for one in Device], default=Device.CUDA.value, help="default: %(default)s")
    what.add_argument("--whole", action="store_true", help="record everything, start-up included, and add no options")
    what.add_argument("--label", metavar="TEXT", help="the profile's name in tables (default: of the file or the arm)")
    what.add_argument("words", nargs="*", metavar="-- COMMAND", help="the command to profile, after a second --")
    tools = parser.add_argument_group("tools")
    tools.add_argument("--nsys", type=Path, metavar="PATH", help="the nsys to use (also UPKERNEL_NSYS)")
    tools.add_argument("--nsys-libraries", type=Path, metavar="DIR", help="libraries that its importer misses on this machine")
    tools.add_argument(
        "--timeout", type=float, default=1800.0, metavar="S", help="limit of the recorded run (default: %(default)s)"
    )
    tools.add_argument(
        "--ncu", metavar="KERNEL", help="counters of one kernel, by a name from the table, instead of a recording"
    )
    tools.add_argument("--ncu-path", type=Path, metavar="PATH", help="the ncu to use (also UPKERNEL_NCU)")
    tools.add_argument("--launches", type=int, default=3, metavar="N", help="launches that ncu looks at (default: %(default)s)")
    tools.add_argument(
        "--skip", type=int, default=0, metavar="N", help="launches of it to let pass first (default: %(default)s)"
    )
    end = parser.add_argument_group("result")
    end.add_argument("--top", type=int, default=20, metavar="N", help="rows of the hot-kernel table (default: %(default)s)")
    end.add_argument("--out", type=Path, metavar="DIR", help="folder of the result (default: a new one in the state folder)")
    end.add_argument("--no-charts", action="store_true", help="make no PNG (they need matplotlib)")


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.profiles.session import run_profile  # noqa: PLC0415 - keeps --help quick

    return run_profile(args, context)
