"""A class that is called like ``flashinfer.BatchDecodeWithPagedKVCacheWrapper`` (0.6.12, flashinfer/decode.py).

``plan`` does a handful of launches and copies nothing to the host; under ``use_cuda_graph`` it writes into the buffers that
the caller gave, so a captured ``run`` follows. FlashInfer itself need not be installed.
"""

from __future__ import annotations

from typing import Any

import torch

from .torch_op import paged_decode, workspace_for

__all__ = ["BatchDecodeWithPagedKVCacheWrapper"]

LAYOUTS = ("NHD", "HND")


class BatchDecodeWithPagedKVCacheWrapper:
    """Decode attention over a paged KV cache, planned once and run for every layer."""

    def __init__(  # noqa: PLR0917  FlashInfer's order
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = True,  # noqa: ARG002  always
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
        backend: str = "auto",  # noqa: ARG002
        jit_args: list[Any] | None = None,
    ) -> None:
        """``float_workspace_buffer`` gives the device; scratch is the wrapper's own, because its content must persist."""
        if kv_layout not in LAYOUTS:
            raise ValueError(f"kv_layout is {kv_layout!r}, it must be one of {', '.join(LAYOUTS)}")
        if jit_args is not None:
            raise NotImplementedError("jit_args: this wrapper has no variants")
        buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        if use_cuda_graph and any(b is None for b in buffers):
            raise ValueError(
                "use_cuda_graph needs paged_kv_indptr_buffer, paged_kv_indices_buffer and paged_kv_last_page_len_buffer"
            )
        self.device = float_workspace_buffer.device
        self._layout = kv_layout
        self._buffers = buffers if use_cuda_graph else None
        self._lens = torch.zeros(len(buffers[2]), dtype=torch.int32, device=self.device) if use_cuda_graph else None
        self._workspace: torch.Tensor | None = None
        self._made_for: tuple[int, ...] = ()

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return self._buffers is not None

    def plan(  # noqa: PLR0917  FlashInfer's order
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype | str = "float16",
        kv_data_type: torch.dtype | str | None = None,
        o_data_type: torch.dtype | str | None = None,
        data_type: torch.dtype | str | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,  # noqa: ARG002
        rope_theta: float | None = None,  # noqa: ARG002
        non_blocking: bool = True,
        block_tables: torch.Tensor | None = None,  # noqa: ARG002
        seq_lens: torch.Tensor | None = None,  # noqa: ARG002
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,  # noqa: ARG002
    ) -> None:
        """Arguments as FlashInfer's. Raises NotImplementedError for RoPE, a fixed split and another output dtype."""
        if pos_encoding_mode != "NONE":
            raise NotImplementedError(f"pos_encoding_mode is {pos_encoding_mode!r}, only NONE is covered")
        if fixed_split_size is not None:
            raise NotImplementedError("fixed_split_size: results are the same for any split from run to run as it is")
        q_data_type = data_type if data_type is not None else q_data_type
        if o_data_type is not None and _dtype(o_data_type) != _dtype(q_data_type):
            raise NotImplementedError(f"o_data_type is {o_data_type}, it must be q_data_type {q_data_type}")
        self._q_dtype = _dtype(q_data_type)
        self._kv_dtype = _dtype(kv_data_type if kv_data_type is not None else q_data_type)
        self._geometry = num_qo_heads, num_kv_heads, head_dim, page_size
        self._window, self._soft_cap, self._sm_scale = window_left + 1, logits_soft_cap or 0.0, sm_scale
        self._set_pages(indptr, indices, last_page_len, non_blocking)
        batch = self._lens.shape[0]
        wanted = batch, num_qo_heads, num_kv_heads, head_dim
        if self._made_for != wanted:
            self._workspace = workspace_for(
                self.device, batch=batch, heads_q=num_qo_heads, heads_kv=num_kv_heads, head_dim=head_dim
            )
            self._made_for = wanted

    begin_forward = plan

    def _set_pages(self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor, non_blocking: bool) -> None:
        page = self._geometry[3]
        if self._buffers is None:
            self._indptr, self._indices, last = (
                t.to(self.device, torch.int32, non_blocking=non_blocking) for t in (indptr, indices, last_page_len)
            )
            self._lens = torch.empty_like(last)
        else:
            batch, room = self._lens.shape[0], self._buffers[1].shape[0]
            if len(last_page_len) != batch or len(indices) > room:
                got = f"plan has {len(last_page_len)} requests and {len(indices)} pages"
                raise ValueError(f"{got}, the graph's buffers hold {batch} and {room}")
            self._indptr, self._indices, last = self._buffers
            self._indptr.copy_(indptr, non_blocking=non_blocking)
            self._indices[: len(indices)].copy_(indices, non_blocking=non_blocking)
            last.copy_(last_page_len, non_blocking=non_blocking)
        pages = self._indptr[1:] - self._indptr[:-1]
        torch.mul((pages - 1) * page + last, pages > 0, out=self._lens)

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | torch.Tensor | None = None,
        v_scale: float | torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,  # noqa: ARG002
        window_left: int | None = None,
        sinks: torch.Tensor | None = None,
        q_len_per_req: int = 1,
        **rest: Any,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Output like q ``[batch * q_len_per_req, heads_q, D]``; lse float32 in base 2, as FlashInfer's."""
        if args or any(x is not None for x in rest.values()):
            raise NotImplementedError(f"run: {list(rest) or 'extra positional arguments'} not covered")
        keys, values = paged_kv_cache if isinstance(paged_kv_cache, tuple) else paged_kv_cache.unbind(1)
        if self._layout == "HND":
            keys, values = keys.transpose(1, 2), values.transpose(1, 2)
        found = q.dtype, keys.dtype, q.shape[1], keys.shape[2], q.shape[2], keys.shape[1]
        planned = self._q_dtype, self._kv_dtype, *self._geometry
        if found != planned:
            raise ValueError(f"run got (q dtype, KV dtype, heads, KV heads, head_dim, page) {found}, planned was {planned}")
        scale = (self._sm_scale if self._sm_scale is not None else q.shape[2] ** -0.5) * (1.0 if q_scale is None else q_scale)
        return paged_decode(
            *(q, keys, values, self._indices, self._lens),
            indptr=self._indptr,
            k_scale=1.0 if k_scale is None else k_scale,
            v_scale=1.0 if v_scale is None else v_scale,
            out=out,
            lse=lse,
            return_lse=return_lse,
            lse_base2=True,
            sinks=sinks,
            sm_scale=scale,
            q_len=q_len_per_req,
            window=self._window if window_left is None else window_left + 1,
            soft_cap=self._soft_cap,
            workspace=self._workspace if q_len_per_req == 1 else None,
        )

    forward = run

    def forward_return_lse(self, q: torch.Tensor, cache: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """`run` with ``return_lse``."""
        return self.run(q, cache, return_lse=True, **options)

    run_return_lse = forward_return_lse


def _dtype(name: torch.dtype | str) -> torch.dtype:
    return getattr(torch, name) if isinstance(name, str) else name
