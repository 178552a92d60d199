"""vLLM 0.24.0 attention backend CUSTOM: our decode, the engine's FlashAttention for everything else.

A batch in which every request has the same 1 to 8 query tokens goes to ``torch.ops.upkernel.paged_decode``; prefill and
mixed batches go to FlashAttention, which the classes below extend. Interface: vllm/v1/attention/backend.py.

With an fp8 cache FlashAttention-3 wants fp8 queries and the layer would quantise them for all batches. Decode keeps them in
16 bits (that is where its accuracy comes from), so here the layer passes them on and only prefill quantises.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from vllm import _custom_ops as ops
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType, CommonAttentionMetadata
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadata,
    FlashAttentionMetadataBuilder,
)

from .arguments import HEAD_DIMS, MAX_GROUP, MAX_Q_LEN
from .torch_op import paged_decode, workspace_for

__all__ = ["UpkernelBackend", "UpkernelBuilder", "UpkernelImpl", "uniform_q_len"]


class UpkernelBackend(FlashAttentionBackend):
    """Registered as CUSTOM by plugins.register_vllm."""

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[UpkernelImpl]:
        return UpkernelImpl

    @staticmethod
    def get_builder_cls() -> type[UpkernelBuilder]:
        return UpkernelBuilder

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int]:
        return [16, 32, 64, 128]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size in HEAD_DIMS

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == AttentionType.DECODER

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        return False


def uniform_q_len(common: CommonAttentionMetadata, most: int) -> int:
    """Query tokens of each request if all have the same number up to ``most`` and attention is causal, else 0.

    Requests that pad a captured graph have no token and stand at the end.
    """
    longest = common.max_query_len
    if not 1 <= longest <= most or common.causal is not True:
        return 0
    if longest == 1:
        return 1
    starts = common.query_start_loc_cpu[: common.num_reqs + 1]
    lens = starts[1:] - starts[:-1]
    real = common.num_actual_tokens // longest
    same = real * longest == common.num_actual_tokens and bool((lens[:real] == longest).all())
    return longest if same else 0


class UpkernelBuilder(FlashAttentionMetadataBuilder):
    """FlashAttention's metadata, with the query length of a pure decode batch and the scratch beside it."""

    # Decode and speculative verification have graphs of their own; mixed batches run piecewise.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        speculative = getattr(vllm_config, "speculative_config", None)
        self.most = min(MAX_Q_LEN, 1 + (speculative.num_speculative_tokens or 0 if speculative else 0))
        # Allocated here and never in forward; layers run one after the other, so they share it.
        self.workspace = workspace_for(
            device,
            batch=vllm_config.scheduler_config.max_num_seqs,
            heads_q=self.num_heads_q,
            heads_kv=self.num_heads_kv,
            head_dim=self.headdim,
            q_len=self.most,
        )

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> FlashAttentionMetadata:
        alone = common_prefix_len == 0 and self.dcp_world_size == 1
        q_len = uniform_q_len(common_attn_metadata, self.most) if alone else 0
        # A decode batch needs no schedule of FlashAttention's, which would cost a kernel launch.
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build or q_len > 0)
        metadata.upkernel_q_len = q_len
        metadata.upkernel_workspace = self.workspace
        return metadata


class UpkernelImpl(FlashAttentionImpl):
    """One layer. Raises NotImplementedError for what decode does not cover, so that the engine says so at start."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.alibi_slopes is not None:
            raise NotImplementedError("upkernel: ALiBi is not covered")
        if self.attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"upkernel: attention type {self.attn_type} is not covered, only {AttentionType.DECODER}")
        if self.num_queries_per_kv > MAX_GROUP:
            raise NotImplementedError(
                f"upkernel: {self.num_queries_per_kv} query heads a KV head, covered are 1 to {MAX_GROUP}"
            )
        self._flash = copy.copy(self)  # knows that it gets fp8 queries
        self._flash.__class__ = FlashAttentionImpl
        self.supports_quant_query_input = False
        left = self.sliding_window[0]
        self._window = left + 1 if left >= 0 else 0
        self._sinks32: torch.Tensor | None = None

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        super().process_weights_after_loading(act_dtype)
        if self.sinks is not None:
            self._sinks32 = self.sinks.detach().float().contiguous()

    def forward(  # noqa: PLR0917  the engine's interface
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: FlashAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        fp8 = self.kv_cache_dtype.startswith("fp8")
        q_len = 0 if attn_metadata is None else attn_metadata.upkernel_q_len
        if q_len == 0 or output_scale is not None or output_block_scale is not None:
            if fp8 and attn_metadata is not None:
                tokens = query.shape[0]
                flat, _ = ops.scaled_fp8_quant(query.reshape(tokens, -1), layer._q_scale)  # noqa: SLF001  the layer's interface
                query = flat.view(query.shape)
            return self._flash.forward(
                layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
            )
        keys, values = kv_cache.unbind(1)
        if fp8:
            keys, values = keys.view(torch.float8_e4m3fn), values.view(torch.float8_e4m3fn)
        tokens = attn_metadata.num_actual_tokens  # a padded batch has more rows in query and output
        batch = tokens // q_len
        paged_decode(
            *(query[:tokens], keys, values, attn_metadata.block_table[:batch], attn_metadata.seq_lens[:batch]),
            out=output[:tokens],
            k_scale=layer._k_scale if fp8 else 1.0,  # noqa: SLF001
            v_scale=layer._v_scale if fp8 else 1.0,  # noqa: SLF001
            sinks=self._sinks32,
            sm_scale=self.scale,
            q_len=q_len,
            window=self._window,
            soft_cap=float(self.logits_soft_cap),
            workspace=attn_metadata.upkernel_workspace,
        )
        return output
