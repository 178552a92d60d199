"""Calling the CUDA kernel with torch tensors; the public operator (torch_op.py) comes here for what it covers."""

from __future__ import annotations

import functools
import math

import torch

from .cuda_build import Build, load

__all__ = ["CudaPagedDecode", "cuda_kernel"]

_load = functools.cache(load)


class CudaPagedDecode:
    """A loaded specialisation with its scratch memory.

    The scratch belongs to one stream at a time: two launches that overlap would share partial results. It starts with
    all bits set and every launch leaves it so, hence it may be replayed from a CUDA graph any number of times. Its size
    does not depend on batch or lengths.

    build: what to compile. ``min_tiles`` is the smallest number of KV tiles worth a block of its own; ``grid`` overrides
    SM count * blocks per SM; ``dependent`` launches with programmatic stream serialization.
    """

    def __init__(
        self,
        build: Build,
        device: torch.device | str = "cuda",
        *,
        grid: int | None = None,
        min_tiles: int = 4,
        dependent: bool = False,
    ) -> None:
        self.build = build
        self.module = _load(build)
        sms = torch.cuda.get_device_properties(device).multi_processor_count
        self.grid = grid or sms * (build.blocks_per_sm or 1)
        self.min_tiles = min_tiles
        self.dependent = dependent
        self.device = device
        self.scratch_bytes = int(self.module.scratch_bytes(build.group, self.grid))
        self.trace: torch.Tensor | None = None  # int64 [grid, 16], written by builds with -DUPK_TRACE

    @functools.cached_property
    def scratch(self) -> torch.Tensor:
        """Scratch for calls that bring none."""
        return torch.full((self.scratch_bytes,), 255, dtype=torch.uint8, device=self.device)

    def __call__(  # noqa: PLR0917  the order of the kernels' arguments
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        out: torch.Tensor,
        *,
        indptr: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        sm_scale: float | None = None,
        k_scale: torch.Tensor | float = 1.0,
        v_scale: torch.Tensor | float = 1.0,
        sinks: torch.Tensor | None = None,
        window: int = 0,
        soft_cap: float = 0.0,
        lse_base2: bool = False,
        q_len: int = 1,
        scratch: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Shapes and meaning as in ``reference.paged_decode_reference``; writes and returns ``out`` (dtype of q).

        Raises ValueError (from the binding) naming the argument that does not fit this build.
        """
        if k_cache.dtype.itemsize == 1:
            k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
        ks = k_scale if isinstance(k_scale, torch.Tensor) else None
        vs = v_scale if isinstance(v_scale, torch.Tensor) else None
        self.module.run(
            q,
            k_cache,
            v_cache,
            block_table,
            indptr,
            seq_lens,
            out,
            lse,
            self.scratch if scratch is None else scratch,
            ks,
            vs,
            sinks,
            1.0 if ks is not None else float(k_scale),
            1.0 if vs is not None else float(v_scale),
            sm_scale if sm_scale is not None else 1.0 / math.sqrt(q.shape[-1]),
            float(soft_cap),
            int(window),
            int(q_len),
            lse_base2,
            self.grid,
            self.min_tiles,
            self.dependent,
            self.trace,
        )
        return out


@functools.cache
def cuda_kernel(build: Build, device: torch.device) -> CudaPagedDecode:
    """The loaded kernel for a specialisation, with its default schedule."""
    return CudaPagedDecode(build, device)
