"""SGLang 0.5.14 decode backend, beside a stock prefill backend (hybrid_attn_backend.py).

SGLang keeps a table of slots, one a token, whatever its page size. The kernel reads that table itself: pages of one token,
and for each request the place in the flattened table where its row begins. So a step's metadata are two small launches
into static buffers, nothing of the table is copied and nothing is read back.

The hybrid backend forwards only the hook outside the graph, so that one does all the work.
Interface: sglang/srt/layers/attention/base_attn_backend.py.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

from .torch_op import paged_decode, workspace_for

__all__ = ["UpkernelBackend"]


class UpkernelBackend(AttentionBackend):
    """Decode only; registered as ``upkernel`` by plugins.register_sglang."""

    needs_cpu_seq_lens = False

    def __init__(self, runner: Any) -> None:
        super().__init__()
        self.token_to_kv_pool, self.req_to_token_pool = runner.token_to_kv_pool, runner.req_to_token_pool
        table = self.req_to_token_pool.req_to_token
        if table.dtype != torch.int32 or not table.is_contiguous() or table.numel() >= 2**31:
            raise NotImplementedError(
                f"upkernel: req_to_token is {table.dtype} {list(table.shape)}, it must be contiguous int32 under 2^31 entries"
            )
        self.table, self.row = table.view(-1), table.shape[1]
        self.device = table.device
        self._use(table.shape[0])

    def _use(self, batch: int) -> None:
        """Static buffers for up to this many requests; graphs hold their addresses."""
        self.lens = torch.ones(batch, dtype=torch.int32, device=self.device)
        self.starts = torch.zeros(batch + 1, dtype=torch.int32, device=self.device)
        self.workspaces: dict[tuple[int, int, int], torch.Tensor] = {}

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:  # noqa: ARG002  the engine's interface
        if max_bs > self.lens.shape[0]:
            self._use(max_bs)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:  # noqa: ARG002
        if forward_batch.forward_mode.is_target_verify():
            raise NotImplementedError("upkernel: speculative verification is not covered by this adapter")
        batch = forward_batch.batch_size
        self.lens[:batch].copy_(forward_batch.seq_lens[:batch])
        torch.mul(forward_batch.req_pool_indices[:batch], self.row, out=self.starts[:batch])

    def forward_decode(  # noqa: PLR0917  the engine's interface
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        if save_kv_cache:
            self.token_to_kv_pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v, layer.k_scale, layer.v_scale)
        keys, values = self.token_to_kv_pool.get_kv_buffer(layer.layer_id)  # [slots, heads_kv, D]
        heads, dim = layer.tp_q_head_num, layer.qk_head_dim
        batch = forward_batch.batch_size
        q = q.reshape(-1, heads, dim)
        out = torch.empty_like(q)
        window = -1 if layer.sliding_window_size is None else layer.sliding_window_size
        paged_decode(
            *(q[:batch], keys.unsqueeze(1), values.unsqueeze(1), self.table, self.lens[:batch]),
            indptr=self.starts[: batch + 1],
            out=out[:batch],
            k_scale=1.0 if layer.k_scale is None else layer.k_scale.detach(),
            v_scale=1.0 if layer.v_scale is None else layer.v_scale.detach(),
            sinks=None if sinks is None else sinks.detach().float().contiguous(),
            sm_scale=layer.scaling,
            window=window + 1,  # SGLang counts the tokens before the newest one
            soft_cap=float(layer.logit_cap or 0.0),
            workspace=self._workspace(heads, keys.shape[1], dim),
        )
        return out.view(-1, heads * dim)

    def _workspace(self, heads_q: int, heads_kv: int, dim: int) -> torch.Tensor:
        """One for each geometry of the model's layers, made in the first forward (SGLang warms up before it captures)."""
        key = heads_q, heads_kv, dim
        if key not in self.workspaces:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("upkernel: the first forward of a layer is inside the capture of a graph, run one before")
            self.workspaces[key] = workspace_for(
                self.device, batch=self.lens.shape[0], heads_q=heads_q, heads_kv=heads_kv, head_dim=dim
            )
        return self.workspaces[key]

    def forward_extend(self, *_: Any, **__: Any) -> torch.Tensor:
        raise NotImplementedError(
            "upkernel decodes only: give --decode-attention-backend upkernel and a --prefill-attention-backend"
        )
