"""Times one sampling step's `apply_all_penalties` of the vLLM on sys.path, and checks it bit for bit.

    python penalties_step.py                                   # CPU, the default shapes
    python penalties_step.py --device cuda --shape 64,128256,512,512 --iters 50 --output step.json

Each sample is one call on fresh logits, after every output list grew by one token in place, as the engine does between two
steps. `wall_ms` is the call with the device idle before and after it; `host_ms` is the time until the call returned (CUDA);
`cpu_ms` is the processor time of all threads (CPU; on a busy machine with --threads 1 it is the steadier number). All samples
are printed as JSON. The exit code is 1 when a result differs from the reference below.
"""

import argparse
import hashlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

# (batch, vocabulary, output tokens, prompt tokens)
Shape = tuple[int, int, int, int]

CPU_SHAPES: list[Shape] = [
    (1, 32000, 1, 8),
    (1, 32000, 16, 64),
    (1, 151936, 512, 512),
    (16, 32000, 512, 64),
    (16, 32000, 512, 8192),
    (16, 32000, 4096, 512),
    (16, 32000, 15000, 64),
    (16, 32000, 28000, 64),
    (4, 151936, 28000, 512),
    (64, 128256, 512, 512),
    (64, 151936, 4096, 512),
    (256, 32000, 256, 256),
]
CUDA_SHAPES: list[Shape] = [(b, v, h, 128) for b in (1, 16, 64, 256) for v in (32000, 128256) for h in (16, 512, 4096)]


def reference(  # noqa: PLR0917 (the order of apply_all_penalties)
    logits: torch.Tensor,
    prompts: list[list[int]],
    presence: torch.Tensor,
    frequency: torch.Tensor,
    repetition: torch.Tensor,
    outputs: list[list[int]],
) -> torch.Tensor:
    """The three penalties over the whole vocabulary, one row at a time, in the logits' own precision.

    A CPU multiplies by the reciprocal of the repetition penalty; vLLM's CUDA kernel divides.
    """
    result = logits.clone()
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        kept = torch.tensor([t for t in output if t != -1], dtype=torch.int64)
        counts = torch.bincount(kept, minlength=logits.shape[1]).to(logits.device)
        seen = counts > 0
        seen[torch.tensor(prompt, dtype=torch.int64, device=logits.device)] = True
        x, penalty = result[row], repetition[row : row + 1]
        up, down = x * penalty, (x / penalty if x.is_cuda else x * (1.0 / penalty))
        x.copy_(torch.where(seen, torch.where(x > 0, down, up).to(x.dtype), x))
        x -= frequency[row : row + 1] * counts
        x -= presence[row : row + 1] * (counts > 0)
    return result


class Case:
    """The inputs of one shape, the same for every vLLM: seeded, and independent of the device."""

    def __init__(self, shape: Shape, device: str, dtype: torch.dtype, tokens: str, seed: int) -> None:
        batch, vocab, history, prompt_len = shape
        self.random = np.random.default_rng(seed)
        self.vocab, self.tokens = vocab, tokens
        self.outputs = [self.draw(history) for _ in range(batch)]
        self.prompts = [self.draw(prompt_len) for _ in range(batch)]
        if batch > 1:
            self.outputs[0][-1] = -1  # a placeholder of async scheduling
            self.outputs[1] = self.outputs[1][: history // 2]
            self.prompts[1] = self.prompts[1][: (prompt_len + 1) // 2]
        padded = np.full((batch, prompt_len), vocab, dtype=np.int64)
        for row, prompt in zip(padded, self.prompts, strict=True):
            row[: len(prompt)] = prompt
        self.prompt_token_ids = torch.from_numpy(padded).to(device)
        self.logits = torch.from_numpy(self.random.standard_normal((batch, vocab), dtype=np.float32) * 8).to(device, dtype)

        def penalty(low: float, high: float) -> torch.Tensor:
            return torch.from_numpy(self.random.uniform(low, high, batch).astype(np.float32)).to(device)

        self.presence, self.frequency, self.repetition = penalty(-2, 2), penalty(-2, 2), penalty(0.5, 2)
        if batch > 2:  # one request without penalties shares the batch
            self.presence[2], self.frequency[2], self.repetition[2] = 0, 0, 1

    def draw(self, count: int) -> list[int]:
        if self.tokens == "zipf":
            drawn: list[int] = (self.random.zipf(1.2, count) % self.vocab).tolist()
            return drawn
        return self.random.integers(0, self.vocab, count).tolist()

    def step(self) -> None:
        for output in self.outputs:
            output.extend(self.draw(1))

    def call(self, function: Callable[..., torch.Tensor], logits: torch.Tensor) -> torch.Tensor:
        return function(logits, self.prompt_token_ids, self.presence, self.frequency, self.repetition, self.outputs)

    def expected(self) -> torch.Tensor:
        return reference(self.logits, self.prompts, self.presence, self.frequency, self.repetition, self.outputs)


def measure(case: Case, function: Callable[..., torch.Tensor], warmup: int, iters: int) -> dict[str, Any]:
    cuda = case.logits.is_cuda

    def wait() -> None:
        if cuda:
            torch.cuda.synchronize()

    buffer = case.logits.clone()
    equal = True
    wall: list[float] = []
    host: list[float] = []
    cpu: list[float] = []
    for index in range(warmup + iters):
        case.step()
        buffer.copy_(case.logits)
        wait()
        cpu_start = time.process_time()
        start = time.perf_counter()
        result = case.call(function, buffer)
        returned = time.perf_counter()
        wait()
        done = time.perf_counter()
        cpu_done = time.process_time()
        if index >= warmup:
            host.append((returned - start) * 1e3)
            wall.append((done - start) * 1e3)
            cpu.append((cpu_done - cpu_start) * 1e3)
        if index in (0, warmup + iters - 1):
            equal = equal and torch.equal(result, case.expected())
    row: dict[str, Any] = {
        "bit_equal": equal,
        "wall_ms_median": statistics.median(wall),
        "wall_ms_min": min(wall),
        "wall_ms": wall,
    }
    if not cuda:
        row |= {"cpu_ms_median": statistics.median(cpu), "cpu_ms": cpu}
    else:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        case.call(function, buffer)
        wait()
        row |= {
            "host_ms_median": statistics.median(host),
            "host_ms": host,
            "peak_extra_mib": (torch.cuda.max_memory_allocated() - before) / 2**20,
        }
    return row


def identity(module: ModuleType) -> dict[str, str]:
    path = Path(module.__file__ or "")
    return {"module": module.__name__, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def parse_shape(text: str) -> Shape:
    try:
        batch, vocab, history, prompt = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"want BATCH,VOCAB,OUTPUT,PROMPT, got {text!r}") from None
    if min(batch, vocab, prompt) < 1 or history < 0:
        raise argparse.ArgumentTypeError(f"BATCH, VOCAB and PROMPT must be positive, OUTPUT not negative: {text!r}")
    return batch, vocab, history, prompt


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--shape", type=parse_shape, action="append", metavar="BATCH,VOCAB,OUTPUT,PROMPT", help="may be given several times"
    )
    parser.add_argument("--tokens", choices=["uniform", "zipf"], default="uniform", help="how token ids are drawn")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32", help="of the logits")
    parser.add_argument("--warmup", type=int, default=5, metavar="N")
    parser.add_argument("--iters", type=int, default=30, metavar="N")
    parser.add_argument("--threads", type=int, metavar="N", help="torch's intra-op threads; default: torch's own choice")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the JSON here instead of printing it")
    args = parser.parse_args(argv)
    if args.iters < 1 or args.warmup < 0:
        parser.error("--iters must be at least 1, --warmup at least 0")
    if args.device == "cuda" and args.dtype != "float32":
        parser.error("vLLM's CUDA kernel wants penalties of the logits' type, and the engine's are float32")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is for the JSON
    from vllm.model_executor.layers import utils  # noqa: PLC0415 (after --help and the thread count)
    from vllm.v1.sample.ops import penalties  # noqa: PLC0415

    cuda = args.device == "cuda"
    rows = []
    for shape in args.shape or (CUDA_SHAPES if cuda else CPU_SHAPES):
        case = Case(shape, args.device, getattr(torch, args.dtype), args.tokens, args.seed)
        row = measure(case, penalties.apply_all_penalties, args.warmup, args.iters)
        rows.append(dict(zip(("batch", "vocab", "output", "prompt"), shape, strict=True)) | row)
        print(shape, f"{row['wall_ms_median']:.3f} ms", "equal" if row["bit_equal"] else "DIFFERS", file=sys.stderr)
    result = {
        "schema": 1,
        "workload": "vllm/penalties_step",
        "modules": [identity(utils), identity(penalties)],
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "args": {k: v for k, v in vars(args).items() if k != "output"},
        "rows": rows,
    }
    text = json.dumps(result)
    if args.output:
        args.output.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    return 0 if all(row["bit_equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
