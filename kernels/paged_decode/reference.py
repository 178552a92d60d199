"""Paged decode attention in plain torch and fp32: slow, and written so that one can see that it is right.

Every kernel of this folder is compared with this file. It reads the same, already quantised, cache as the kernels, so a
difference is the kernel's own arithmetic and never the quantisation of the cache.
"""

from __future__ import annotations

import math

import torch

__all__ = ["gather_kv", "paged_decode_reference", "relative_error"]


def gather_kv(
    cache: torch.Tensor,
    pages: torch.Tensor,
    length: int,
    scale: torch.Tensor | float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The first ``length`` tokens of one request as ``[length, heads_kv, D]``.

    cache: ``[pages, page_size, heads_kv, D]`` in logical order (any strides); pages: the request's page numbers in
    order; scale: a number, a 0-dim tensor, or one value per KV head. ``stored * scale`` is the real value.
    """
    page_size = cache.shape[1]
    need = -(-length // page_size)
    if pages.numel() < need:
        raise ValueError(f"table has {pages.numel()} pages for a request of {length} tokens, which needs {need}")
    # fp8 tensors index only through a byte view on some torch versions.
    raw = cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache
    rows = raw[pages[:need].long()].view(cache.dtype) if cache.dtype.itemsize == 1 else raw[pages[:need].long()]
    rows = rows.to(dtype).reshape(need * page_size, cache.shape[2], cache.shape[3])[:length]
    scale = torch.as_tensor(scale, dtype=dtype, device=cache.device).reshape(-1, 1)
    return rows * scale


def paged_decode_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    sm_scale: float | None = None,
    indptr: torch.Tensor | None = None,
    k_scale: torch.Tensor | float = 1.0,
    v_scale: torch.Tensor | float = 1.0,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    q_len: int = 1,
    lse_base2: bool = False,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of the newest ``q_len`` query tokens of every request over its cached tokens, causal.

    q: ``[batch * q_len, heads_q, D]``, the tokens of a request one after the other.
    k_cache, v_cache: ``[pages, page_size, heads_kv, D]``, any strides, 16-bit or fp8.
    block_table: int32 ``[batch, width]``, or the flat page list when ``indptr`` (``[batch + 1]``) is given.
    seq_lens: ``[batch]``, the tokens of each request in the cache, the newest included. Query i of a request is its token
    number ``len - q_len + i`` and sees that token and all before it; a query before the first token sees none.
    window: a query sees only the last ``window`` of its tokens (0: all). soft_cap: logits become ``cap * tanh(logits / cap)``.
    sinks: ``[heads_q]`` logits (natural units, not scaled) that take part in the softmax with no value behind them.

    Returns ``(out, lse)`` in ``dtype``, ``[batch * q_len, heads_q, D]`` and ``[batch * q_len, heads_q]``. lse is the
    logarithm of the softmax denominator, natural or base 2. A query that sees no token has a zero output and lse -inf
    (or its sink).

    Raises ValueError where heads_q is no multiple of heads_kv, a length is negative or a table is too short.
    Source: softmax(q k^T * sm_scale) v; sinks as in the gpt-oss models (an extra logit in the denominator).
    """
    tokens, heads_q, dim = q.shape
    heads_kv = k_cache.shape[2]
    if heads_q % heads_kv:
        raise ValueError(f"{heads_q} query heads are not a multiple of {heads_kv} KV heads")
    group = heads_q // heads_kv
    if sm_scale is None:
        sm_scale = 1.0 / math.sqrt(dim)
    out = torch.zeros(tokens, heads_q, dim, dtype=dtype, device=q.device)
    lse = torch.full((tokens, heads_q), -math.inf, dtype=dtype, device=q.device)
    lens = seq_lens.tolist()
    starts = indptr.tolist() if indptr is not None else None
    for b, length in enumerate(lens):
        if length < 0:
            raise ValueError(f"seq_lens[{b}] is negative: {length}")
        pages = block_table[starts[b] : starts[b + 1]] if starts is not None else block_table[b]
        sink = sinks.to(dtype) if sinks is not None else torch.full((heads_q,), -math.inf, dtype=dtype, device=q.device)
        lse[b * q_len : (b + 1) * q_len] = sink
        all_keys = gather_kv(k_cache, pages, length, k_scale, dtype) if length else None
        all_values = gather_kv(v_cache, pages, length, v_scale, dtype) if length else None
        for i in range(q_len):
            visible = length - q_len + 1 + i
            if visible <= 0:
                continue
            lo = max(0, visible - window) if window > 0 else 0
            keys, values = all_keys[lo:visible], all_values[lo:visible]
            row = b * q_len + i
            # Query head i belongs to KV head i // group.
            query = q[row].to(dtype).reshape(heads_kv, group, dim)
            logits = torch.einsum("hgd,nhd->hgn", query, keys) * sm_scale
            if soft_cap > 0:
                logits = soft_cap * torch.tanh(logits / soft_cap)
            logits = torch.cat([logits, sink.reshape(heads_kv, group, 1)], dim=-1)
            lse[row] = torch.logsumexp(logits, dim=-1).reshape(heads_q)
            probs = torch.softmax(logits, dim=-1)[..., :-1]
            out[row] = torch.einsum("hgn,nhd->hgd", probs, values).reshape(heads_q, dim)
    return out, lse / math.log(2.0) if lse_base2 else lse


def relative_error(out: torch.Tensor, ref: torch.Tensor) -> float:
    """``|out - ref| / |ref|`` in the Euclidean norm over everything; NaN anywhere gives NaN, which passes no bound."""
    out, ref = out.double(), ref.double()
    return float((out - ref).norm() / ref.norm().clamp_min(1e-300))
