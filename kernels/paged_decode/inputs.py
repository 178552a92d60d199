"""Inputs for tests and measurements: paged caches as the engines lay them out, with traps for wrong reads.

Pages are shuffled over the pool, every pool has pages that no request owns, and whatever lies beyond a request's last
token (the rest of its last page, unused pages, the table past the last page) is poisoned: NaN in the cache, a huge page
number in the table. A kernel that reads what it must not returns NaN or faults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

__all__ = ["Case", "Inputs", "make_inputs", "ragged"]


@dataclass(frozen=True)
class Case:
    """One problem. ``layout``: nhd (two tensors, as SGLang), hnd (heads before positions), vllm (K and V interleaved by
    page in one tensor, so the page stride is twice the payload).
    """

    lens: tuple[int, ...]
    heads_q: int = 32
    heads_kv: int = 8
    head_dim: int = 128
    page: int = 16
    q_dtype: torch.dtype = torch.bfloat16
    kv_dtype: torch.dtype = torch.bfloat16
    layout: str = "nhd"
    q_len: int = 1
    options: dict = field(default_factory=dict, compare=False)

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V that attention must read."""
        return 2 * sum(self.lens) * self.heads_kv * self.head_dim * self.kv_dtype.itemsize

    @property
    def label(self) -> str:
        """Short name for tables."""
        kind = {1: "fp8", 2: str(self.kv_dtype).split(".")[-1]}[self.kv_dtype.itemsize]
        uniform = len(set(self.lens)) == 1
        ctx = str(self.lens[0]) if uniform else f"ragged{min(self.lens)}-{max(self.lens)}"
        extra = "" if self.page == 16 else f" page {self.page}"
        return f"{kind} {self.heads_q}/{self.heads_kv} b{len(self.lens)} {ctx}{extra}"


@dataclass
class Inputs:
    """Tensors of one set, in the argument order of the kernels."""

    q: torch.Tensor
    k: torch.Tensor  # [pages, page, heads_kv, D] in logical order
    v: torch.Tensor
    table: torch.Tensor
    lens: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor

    def args(self) -> tuple[torch.Tensor, ...]:
        """Positional arguments of a kernel call, without the outputs."""
        return self.q, self.k, self.v, self.table, self.lens


def ragged(batch: int, mean: int) -> tuple[int, ...]:
    """Lengths log-uniform over 10:1 in a fixed shuffled order, scaled so that the total is batch * mean."""
    raw = [10 ** (i / (batch - 1)) for i in range(batch)]
    scale = batch * mean / sum(raw)
    lens = [max(1, round(x * scale)) for x in raw]
    lens[0] += batch * mean - sum(lens)
    order = [(i * 7) % batch for i in range(batch)] if math.gcd(7, batch) == 1 else range(batch)
    return tuple(lens[i] for i in order)


def _fill(shape: tuple[int, ...], dtype: torch.dtype, device: str, gen: torch.Generator) -> torch.Tensor:
    """Normal values in ``dtype``, filled in slices so that no full-size float32 copy exists."""
    out = torch.empty(shape, dtype=dtype, device=device)
    flat = out.view(shape[0], -1)
    step = max(1, (1 << 26) // max(1, flat.shape[1]))
    for i in range(0, shape[0], step):
        part = torch.randn(flat[i : i + step].shape, device=device, generator=gen)
        flat[i : i + step] = part.to(dtype)
    return out


def make_inputs(case: Case, seed: int = 0, device: str = "cuda", poison: bool = True, spare: int = 3) -> Inputs:
    """Random inputs of a case. The same seed gives the same values on one device type."""
    gen = torch.Generator(device=device)
    gen.manual_seed(seed)
    batch, page, heads, dim = len(case.lens), case.page, case.heads_kv, case.head_dim
    counts = [-(-n // page) for n in case.lens]
    total = sum(counts) + spare
    order = torch.randperm(total, generator=gen, device=device).int()
    if case.layout == "vllm":
        both = _fill((total, 2, page, heads, dim), case.kv_dtype, device, gen)
        k, v = both.unbind(1)
    elif case.layout == "hnd":
        k = _fill((total, heads, page, dim), case.kv_dtype, device, gen).transpose(1, 2)
        v = _fill((total, heads, page, dim), case.kv_dtype, device, gen).transpose(1, 2)
    else:
        k = _fill((total, page, heads, dim), case.kv_dtype, device, gen)
        v = _fill((total, page, heads, dim), case.kv_dtype, device, gen)
    width = max(1, *counts) + 2
    table = torch.full((batch, width), 2**30 if poison else 0, dtype=torch.int32, device=device)
    at = 0
    for b, n in enumerate(counts):
        table[b, :n] = order[at : at + n]
        at += n
    if poison:
        nan = torch.full((1,), float("nan"), device=device).to(case.kv_dtype)
        nan = nan.view(torch.uint8 if nan.dtype.itemsize == 1 else torch.int16)
        for cache in (k, v):
            raw = cache.view(nan.dtype)
            raw[order[at:].long()] = nan
            for b, n in enumerate(case.lens):
                if n % page:
                    raw[int(table[b, counts[b] - 1]), n % page :] = nan
    q = torch.randn(batch * case.q_len, case.heads_q, dim, device=device, generator=gen).to(case.q_dtype)
    lens = torch.tensor(case.lens, dtype=torch.int32, device=device)
    out = torch.full_like(q, float("nan"))
    lse = torch.full((batch * case.q_len, case.heads_q), float("nan"), device=device)
    return Inputs(q, k, v, table, lens, out, lse)
