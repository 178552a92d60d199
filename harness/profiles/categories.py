"""What a kernel is for, by its name. The rules are in order: the first that matches decides."""

from __future__ import annotations

import re
from functools import lru_cache

from harness.profiles.model import Category

__all__ = ["categorise"]

_RULES: tuple[tuple[Category, str], ...] = (
    (Category.COMM, r"nccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device|multimem|deep_?ep"),
    # Before attention: "reshape_and_cache_flash" writes the cache for it.
    (Category.KV_CACHE, r"reshape_and_cache|concat_and_cache|store_(?:kv_?)?cache|set_kv|append_paged|write_kv|copy_blocks"),
    # Before gemm: grouped GEMMs of experts are named for both.
    (Category.MOE, r"moe|expert|topk_gating|grouped_topk|topksoftmax|topk_softmax|permute_tokens"),
    (
        Category.ATTENTION,
        (
            r"attn|attention|sdpa|flash_?fwd|flash_?mla|\bflash::|fmha|\bmla_|_mla\b|\bxqa|kernel_mha|paged_?decode|batch_?decode|"
            r"batch_?prefill|decodewithpaged|prefillwithpaged|single_?decode|single_?prefill|decode_grouped|fwd_grouped|"
            r"_fwd_kernel|merge_?states?|variablelengthmerge|persistentvariable|split_?kv|splitkv|reduce_segments|"
            r"prepare_varlen|upkernel.*decode"
        ),
    ),
    (Category.NORM, r"norm|rsqrt"),
    (Category.ROPE, r"rope|rotary"),
    (Category.ACTIVATION, r"silu|gelu|relu|swiglu|act_and_mul|activation|sigmoid|tanh"),
    (
        Category.SAMPLING,
        (
            r"sampl|argmax|arg_max|topk|top_k|topp|top_p|gumbel|penalt|logprob|log_?softmax|softmax|multinomial|exponential|"
            r"min_p|radix_?sort|devicesegmentedsort|bitonic|gatherTopK|sort|distribution|philox|randperm|rejection|ranks_kernel|logits"
        ),
    ),
    (
        Category.GEMM,
        r"gemm|gemv|nvjet|cutlass|cublas|matmul|xmma|marlin|machete|wgmma|\bdot_kernel|splitk|split_k|triton_tem_fused.*mm|_mm_|dotkernel",
    ),
    (Category.QUANTISATION, r"quant|dequant|fp8_?(?:cast|convert)|scaled_fp8|awq|gptq"),
    (Category.MEMCPY, r"^memcpy"),
    (Category.MEMSET, r"^memset"),
    (
        Category.ELEMENTWISE,
        (
            r"elementwise|triton_(?:poi|per|red|for)|vectorized_gather|index|catarray|copy|fill|reduce_kernel|gather|scatter|"
            r"arange|cumsum|scan|embedding|where|cast"
        ),
    ),
)
_COMPILED = tuple((category, re.compile(pattern, re.IGNORECASE)) for category, pattern in _RULES)


@lru_cache(maxsize=65536)
def categorise(name: str) -> Category:
    """`name` is a normalised name, or better the full one: template arguments often say what a launcher runs."""
    if name.startswith("Memcpy"):
        return Category.MEMCPY
    if name.startswith("Memset"):
        return Category.MEMSET
    for category, pattern in _COMPILED:
        if pattern.search(name):
            return category
    return Category.OTHER
