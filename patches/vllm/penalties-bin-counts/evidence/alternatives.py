# ruff: noqa: INP001, PLR0917 (a script; the argument order is that of apply_all_penalties)
"""Compares the series with its base and with the designs that were not taken, in one process, on a CPU.

    PYTHONPATH=BASE_TREE:workloads/vllm python alternatives.py --base BASE_TREE --patched PATCHED_TREE --output cpu-step.json

BASE_TREE and PATCHED_TREE are vLLM trees without and with the series; everything but the two penalty modules is imported from
PYTHONPATH. Within each step the arms run in a new seeded random order on the same inputs, so a busy machine disturbs all of
them alike. `cpu_ms` is processor time: with --threads 1 it does not count the time in which other programs had the core.
"""

import argparse
import importlib.util
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import penalties_step
import torch
from vllm._custom_ops import apply_repetition_penalties
from vllm.utils.torch_utils import make_tensor_with_pad

Tensor = torch.Tensor
Function = Callable[..., Tensor]


def padded(outputs: list[list[int]], vocab: int) -> Tensor:
    tokens = make_tensor_with_pad(outputs, pad=vocab, device="cpu", dtype=torch.int64)
    return tokens.masked_fill_(tokens == -1, vocab)


def tables(prompt: Tensor, output: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    rows = prompt.shape[0]
    mask = torch.zeros((rows, vocab + 1), dtype=torch.bool).scatter_(1, prompt, value=True)[:, :vocab]
    ones = torch.ones_like(output, dtype=torch.int32)
    return mask, torch.zeros((rows, vocab + 1), dtype=torch.int32).scatter_add_(1, output, ones)[:, :vocab]


def formula(logits: Tensor, mask: Tensor, counts: Tensor, penalties: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    presence, frequency, repetition = penalties
    seen = counts > 0
    apply_repetition_penalties(logits, mask, seen, repetition)
    logits -= frequency.unsqueeze(1) * counts
    logits -= presence.unsqueeze(1) * seen
    return logits


def small_tables(logits: Tensor, prompt: Tensor, *rest: Any) -> Tensor:
    """Only narrower tables: bool for the prompt, int32 for the output."""
    *penalties, outputs = rest
    return formula(logits, *tables(prompt, padded(outputs, logits.shape[1]), logits.shape[1]), tuple(penalties))


class PersistentCounts:
    """A bound for counts kept between steps: the upkeep is free here, the formula runs over the vocabulary."""

    def __init__(self) -> None:
        self.owner: object = None

    def __call__(self, logits: Tensor, prompt: Tensor, *rest: Any) -> Tensor:
        *penalties, outputs = rest
        if self.owner is not outputs:
            self.owner = outputs
            self.mask, self.counts = tables(prompt, padded(outputs, logits.shape[1]), logits.shape[1])
        else:
            for row, output in enumerate(outputs):
                self.counts[row, output[-1]] += 1
        return formula(logits, self.mask, self.counts, tuple(penalties))


def sorted_tokens(
    logits: Tensor, prompt: Tensor, presence: Tensor, frequency: Tensor, repetition: Tensor, outputs: Any
) -> Tensor:
    """No tables: unique (row, token) pairs of the batch by sorting."""
    batch, vocab = logits.shape
    lengths = np.array([len(output) for output in outputs])
    flat = np.concatenate([np.array(output, dtype=np.int64) for output in outputs])
    pairs, counts = np.unique((flat + np.repeat(np.arange(batch) * vocab, lengths))[flat != -1], return_counts=True)
    rows, tokens, number = torch.from_numpy(pairs // vocab), torch.from_numpy(pairs % vocab), torch.from_numpy(counts)
    real = prompt < vocab
    both = torch.cat((real.nonzero()[:, 0], rows)), torch.cat((prompt[real], tokens))
    x, penalty = logits[both], repetition[both[0]]
    logits[both] = x * torch.where(x > 0, 1.0 / penalty, penalty)
    x = logits[rows, tokens]
    x -= frequency[rows] * number
    x -= presence[rows]
    logits[rows, tokens] = x
    return logits


def row_loop(logits: Tensor, prompt: Tensor, presence: Tensor, frequency: Tensor, repetition: Tensor, outputs: Any) -> Tensor:
    """One count table of a single row, cleared by its own tokens."""
    batch, vocab = logits.shape
    table = torch.zeros(vocab + 1, dtype=torch.int32)
    one = torch.ones((), dtype=torch.int32)
    for i in range(batch):
        output = torch.from_numpy(np.array(outputs[i], dtype=np.int64))
        output = output[output != -1]
        tokens = torch.cat((prompt[i][prompt[i] < vocab], output))
        table.scatter_add_(0, output, one.expand(output.shape[0]))
        counts, x, here = table.gather(0, tokens), logits[i].gather(0, tokens), slice(i, i + 1)
        table[output] = 0
        x *= torch.where(x > 0, 1.0 / repetition[here], repetition[here])
        x -= frequency[here] * counts
        x -= presence[here] * (counts > 0)
        logits[i].scatter_(0, tokens, x)
    return logits


def load(tree: Path, name: str) -> tuple[Function, list[dict[str, str]]]:
    def module(path: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"{name}_{Path(path).stem}", tree / path)
        if spec is None or spec.loader is None:
            raise SystemExit(f"cannot load {tree / path}")
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded

    # The tree's own operators are registered by the first import of this module.
    importlib.import_module("vllm.model_executor.layers.utils")
    with patch("vllm.utils.torch_utils.direct_register_custom_op"):
        utils = module("vllm/model_executor/layers/utils.py")
    penalties = module("vllm/v1/sample/ops/penalties.py")
    penalties.apply_penalties = utils.apply_penalties
    return penalties.apply_all_penalties, [penalties_step.identity(utils), penalties_step.identity(penalties)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, metavar="TREE")
    parser.add_argument("--patched", type=Path, required=True, metavar="TREE")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--iters", type=int, default=20, help="per shape; a third of it where a step is slow")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", choices=["uniform", "zipf"], default="uniform")
    parser.add_argument("--shape", type=penalties_step.parse_shape, action="append", metavar="BATCH,VOCAB,OUTPUT,PROMPT")
    parser.add_argument("--only-series", action="store_true", help="no alternatives")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="a run is appended to the runs in it")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    (base, base_modules), (patched, patched_modules) = load(args.base, "base"), load(args.patched, "patched")
    arms: dict[str, Function] = {"base": base, "patched": patched}
    if not args.only_series:
        arms |= {"small_tables": small_tables, "sorted_tokens": sorted_tokens, "row_loop": row_loop}
    shuffler = random.Random(args.seed)  # noqa: S311 (not a secret)
    rows = []
    for shape in args.shape or penalties_step.CPU_SHAPES:
        case = penalties_step.Case(shape, "cpu", torch.float32, args.tokens, args.seed)
        here = arms if args.only_series else arms | {"persistent_counts": PersistentCounts()}
        samples: dict[str, dict[str, list[float]]] = {arm: {"wall_ms": [], "cpu_ms": []} for arm in here}
        buffer, equal = case.logits.clone(), dict.fromkeys(here, True)
        iters = args.iters if shape[0] * shape[1] < 2_000_000 else max(args.iters // 3, 1)
        for index in range(-2, iters):
            case.step()
            order = list(here)
            shuffler.shuffle(order)
            expected = case.expected() if index in {-2, iters - 1} else None
            for arm in order:
                buffer.copy_(case.logits)
                cpu, wall = time.process_time(), time.perf_counter()
                result = case.call(here[arm], buffer)
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                if index >= 0:
                    samples[arm]["wall_ms"].append(wall * 1e3)
                    samples[arm]["cpu_ms"].append(cpu * 1e3)
                if expected is not None:
                    equal[arm] = equal[arm] and torch.equal(result, expected)
        rows.append(
            dict(zip(("batch", "vocab", "output", "prompt"), shape, strict=True)) | {"bit_equal": equal, "arms": samples}
        )
        median = {arm: statistics.median(samples[arm]["cpu_ms"]) for arm in here}
        print(shape, *(f"{arm} {ms:.3f}" for arm, ms in median.items()), "" if all(equal.values()) else equal, flush=True)
    old = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else {"schema": 1, "runs": []}
    old["runs"].append({
        "workload": "vllm/penalties_step",
        "order": "arms shuffled within each step, one process",
        "torch": torch.__version__,
        "threads": args.threads,
        "tokens": args.tokens,
        "seed": args.seed,
        "modules": {"base": base_modules, "patched": patched_modules},
        "rows": rows,
    })  # fmt: skip
    args.output.write_text(json.dumps(old) + "\n", encoding="utf-8")
    return 0 if all(all(row["bit_equal"].values()) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
