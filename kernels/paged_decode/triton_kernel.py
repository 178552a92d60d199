"""Paged decode attention in Triton: the portable kernel, one launch, deterministic.

Same interface as the CUDA kernel. One program takes one piece of one row (a request and a KV head) with all query heads of
that KV head, padded to 16 rows because that is the smallest matrix operand. Pieces are cut on the device from the lengths,
so that long and short requests share the machine fairly and the grid depends on host-known values only: a row of `tiles_b`
tiles gets its share of them, `tiles_b * pieces / sum(tiles)` in whole numbers, at least one. All rows together have at most
`pieces + batch`, which is the grid.

The last program of a row to finish merges the row's partial results in the order of the pieces (many of them in two
levels), so the result does not depend on which one that was. Counters that start at -1 and are put back make this safe under
graph replay.

Sources: online softmax (Milakov and Gimelshein, 2018), split KV (Flash-Decoding, Dao et al., 2023).
"""

# A kernel's arguments are device values with no Python type, its constants are upper case, and m, l, o are the names of the
# running maximum, denominator and output in every paper; `if` with a constant chooses code, which a ternary would not.
# ruff: noqa: ANN001, ANN201, ANN202, N803, E741, SIM108, PLR0915, PLR0917, C901, PLR0912

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["paged_decode_kernel"]


@triton.jit
def _schedule(n, window, Q_LEN: tl.constexpr, TOK: tl.constexpr, WINDOW: tl.constexpr):
    """First tile and number of tiles of rows of length n; a request of length 0 or less has no tile."""
    n = tl.maximum(n, 0)
    first = n * 0
    if WINDOW:
        first = tl.maximum(n - (Q_LEN - 1) - window, 0) // TOK
    return first, (n + TOK - 1) // TOK - first


@triton.jit
def _pieces_of(tiles, total, pieces, MIN_TILES: tl.constexpr):
    """How many programs share a row: its part of `pieces`, at least 1, each with MIN_TILES at least.

    Rounded down from 2 on, because `pieces` is what runs at once: a few programs more would start when all others end.
    """
    twice = 2 * tiles * pieces // total
    share = tl.where(twice >= 4, twice // 2, (twice + 1) // 2)
    return tl.maximum(tl.minimum(share, tiles // MIN_TILES), 1)


@triton.jit
def _widen(x, FP8: tl.constexpr):
    """Raw fp8 bytes to f16 by moving bits; exact, subnormals included.

    e5m2 (FP8 == 2) is the upper half of an f16. The bits of e4m3 (FP8 == 1) in an f16 mean 2^-8 of the value, because the
    exponent biases are 7 and 15; the caller puts the factor into its scales. A stored e4m3 NaN becomes 480.
    """
    y = x.to(tl.uint16)
    if FP8 == 1:
        y = ((y & 0x80) << 8) | ((y & 0x7F) << 7)
    else:
        y = y << 8
    return y.to(tl.float16, bitcast=True)


@triton.jit
def _finish(
    o, m, l, v_factor, rows, b, h, out, lse, sinks, o_stride_t, o_stride_h, heads_q,
    GROUP: tl.constexpr, Q_LEN: tl.constexpr, D: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    """Normalises and stores the rows of one KV head. o [rows, D], m (log2 units) and l [rows]."""
    real = rows < GROUP * Q_LEN
    head = h * GROUP + rows % GROUP
    token = b * Q_LEN + rows // GROUP
    if SINKS:
        sink = tl.load(sinks + head, mask=real, other=0.0) * 1.4426950408889634
        top = tl.maximum(m, sink)
        f = tl.exp2(m - top)
        l = l * f + tl.exp2(sink - top)
        o = o * f[:, None]
        m = top
    o = o * (tl.where(l > 0, v_factor / tl.where(l > 0, l, 1.0), 0.0))[:, None]
    dims = tl.arange(0, D)
    at = token.to(tl.int64) * o_stride_t + head.to(tl.int64) * o_stride_h
    tl.store(out + at[:, None] + dims[None, :], o.to(out.dtype.element_ty), mask=real[:, None])
    if LSE > 0:
        value = tl.where(l > 0, m + tl.log2(tl.where(l > 0, l, 1.0)), float("-inf"))
        if LSE == 1:
            value = value * 0.6931471805599453
        tl.store(lse + token.to(tl.int64) * heads_q + head, value, mask=real)


@triton.jit
def _merge(
    part_ml, part_o, first, parts, apart, h, heads_kv,
    REAL: tl.constexpr, COLS: tl.constexpr, D: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The sum of ``parts`` partial results, left by programs ``first``, ``first + apart``, ... of KV head h, in that order."""
    rows = tl.arange(0, COLS)
    dims = tl.arange(0, D)
    m = tl.full([COLS], -1e30, tl.float32)
    l = tl.zeros([COLS], tl.float32)
    o = tl.zeros([COLS, D], tl.float32)
    for i in range(0, parts, UNROLL):
        part = i + tl.arange(0, UNROLL)
        at = ((first + part * apart) * heads_kv + h).to(tl.int64)[:, None] * REAL + rows[None, :]
        there = (part < parts)[:, None] & (rows < REAL)[None, :]
        # .cg: these lines were written by other processors, and the first-level cache does not know.
        pm = tl.load(part_ml + at * 2, mask=there, other=-1e30, cache_modifier=".cg")
        pl = tl.load(part_ml + at * 2 + 1, mask=there, other=0.0, cache_modifier=".cg")
        po = tl.load(part_o + at[:, :, None] * D + dims[None, None, :], mask=there[:, :, None], other=0.0,
                     cache_modifier=".cg")  # fmt: skip
        top = tl.maximum(m, tl.max(pm, 0))
        f = tl.exp2(m - top)
        g = tl.exp2(pm - top[None, :])
        l = l * f + tl.sum(pl * g, 0)
        o = o * f[:, None] + tl.sum(po * g[:, :, None], 0)
        m = top
    return m, l, o


# Numbers that change from step to step must not be compiled in.
@triton.jit(do_not_specialize=["batch", "pieces", "window", "table_stride", "scale_stride"])
def paged_decode_kernel(
    # Tensors; strides below in elements, the last dimension of q, k, v and out is contiguous.
    q, k, v, table, indptr, lens, out, lse, k_scale, v_scale, sinks,
    # Scratch: counters int32, one a row and one a program, all -1 between launches; parts of every program of the grid.
    counters, set_counters, part_ml, part_o,
    logit_scale,  # sm_scale, times log2(e) unless soft-capped
    k_scale_value, v_scale_value, scale_stride, soft_cap,
    batch, pieces, window,
    q_stride_t, q_stride_h, o_stride_t, o_stride_h, table_stride,
    k_stride_p, k_stride_t, k_stride_h, v_stride_p, v_stride_t, v_stride_h,
    GROUP: tl.constexpr, Q_LEN: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    TOK: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, BATCH: tl.constexpr, MIN_TILES: tl.constexpr,
    FLAT: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr,
    LSE: tl.constexpr,  # 0 none, 1 natural, 2 base 2
    SCALES: tl.constexpr,  # bit 0: k_scale is a tensor, bit 1: v_scale is
    FP8: tl.constexpr,  # 0 none, 1 raw e4m3 bytes, 2 raw e5m2 bytes, 3 a native fp8 type
    RESCALE: tl.constexpr,  # bf16 queries against f16 operands
    UNROLL: tl.constexpr,  # parts read at once
    FAN: tl.constexpr,  # more than 2 * FAN parts are merged in two levels, FAN by FAN
    WIDE: tl.constexpr,  # products in fp32: the interpreter takes bf16 operands for integers
):  # fmt: skip
    """One piece of one row a program; grid (heads_kv, pieces + batch). Everything else is in the module's docstring."""
    h = tl.program_id(0)
    w = tl.program_id(1)
    heads_kv = tl.num_programs(0)

    # Which row and which piece of it. Every program reads all lengths: they are few and shared by all through the caches.
    every = tl.arange(0, BATCH)
    all_lens = tl.load(lens + every, mask=every < batch, other=0)
    _all_first, all_tiles = _schedule(all_lens, window, Q_LEN, TOK, WINDOW)
    total = tl.maximum(tl.sum(all_tiles, 0), 1)
    all_pieces = tl.where(every < batch, _pieces_of(all_tiles, total, pieces, MIN_TILES), 0)
    b = tl.sum((tl.cumsum(all_pieces, 0) <= w).to(tl.int32), 0)
    if b >= batch:
        return
    begin = tl.sum(tl.where(every < b, all_pieces, 0), 0)  # programs of the rows before
    n = tl.maximum(tl.load(lens + b), 0)
    first, tiles = _schedule(n, window, Q_LEN, TOK, WINDOW)
    count = _pieces_of(tiles, total, pieces, MIN_TILES)
    piece = w - begin
    t0 = first + piece * tiles // count
    t1 = first + (piece + 1) * tiles // count

    # Row r of the operands is query r // GROUP, head r % GROUP of the group.
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, D)
    real = rows < GROUP * Q_LEN
    q_at = (b * Q_LEN + rows // GROUP).to(tl.int64) * q_stride_t + (h * GROUP + rows % GROUP).to(tl.int64) * q_stride_h
    query = tl.load(q + q_at[:, None] + dims[None, :], mask=real[:, None], other=0.0)
    factor = logit_scale * k_scale_value
    if SCALES & 1:
        factor *= tl.load(k_scale + h * scale_stride)
    v_factor = v_scale_value
    if SCALES & 2:
        v_factor *= tl.load(v_scale + h * scale_stride)
    if CAP:
        factor /= soft_cap
    if FP8 == 1:
        factor *= 256.0
        v_factor *= 256.0
    row_factor = tl.zeros([ROWS], tl.float32) + factor
    if RESCALE:
        # bf16 reaches 1e38 and f16 only 65504: take the power of two of the largest element out of every row.
        wide = query.to(tl.float32)
        amax = tl.max(tl.abs(wide), 1)
        e = tl.minimum(tl.maximum(amax.to(tl.int32, bitcast=True) >> 23, 1), 253)
        back = (e << 23).to(tl.float32, bitcast=True)
        inverse = ((254 - e) << 23).to(tl.float32, bitcast=True)
        query = (wide * inverse[:, None]).to(tl.float16)
        row_factor *= back
    if WIDE:
        query = query.to(tl.float32)

    visible = n - (Q_LEN - 1) + rows // GROUP  # causal: tokens that a query may see
    m = tl.full([ROWS], -1e30, tl.float32)  # finite, so that differences never become NaN
    l = tl.zeros([ROWS], tl.float32)
    o = tl.zeros([ROWS, D], tl.float32)
    if FLAT:
        row_table = table + tl.load(indptr + b)
    else:
        row_table = table + b.to(tl.int64) * table_stride
    toks = tl.arange(0, TOK)
    k_row = k + h.to(tl.int64) * k_stride_h
    v_row = v + h.to(tl.int64) * v_stride_h
    for t in range(t0, t1):
        tok = t * TOK + toks
        inside = tok < n  # what lies past the length may be anything, NaN included, and is not read
        if WINDOW:
            inside = inside & (tok >= n - (Q_LEN - 1) - window)  # an engine frees the pages that a window has left
        if PAGE >= TOK:
            page = tl.load(row_table + t * TOK // PAGE).to(tl.int64)
            k_at = page * k_stride_p + (tok % PAGE) * k_stride_t
            v_at = page * v_stride_p + (tok % PAGE) * v_stride_t
        else:
            page = tl.load(row_table + tok // PAGE, mask=inside, other=0).to(tl.int64)
            k_at = page * k_stride_p + (tok % PAGE) * k_stride_t
            v_at = page * v_stride_p + (tok % PAGE) * v_stride_t
        keys = tl.load(k_row + k_at[None, :] + dims[:, None], mask=inside[None, :], other=0.0)
        if FP8 == 3:
            keys = keys.to(tl.float16)
        elif FP8 > 0:
            keys = _widen(keys, FP8)
        if WIDE:
            keys = keys.to(tl.float32)
        s = tl.dot(query, keys) * row_factor[:, None]
        if CAP:
            # tanh(x) = 1 - 2 / (e^2x + 1), in log2 units afterwards.
            s = soft_cap * 1.4426950408889634 * (1.0 - 2.0 / (tl.exp2(tl.minimum(s * 2.8853900817779268, 126.0)) + 1.0))
        seen = tok[None, :] < visible[:, None]
        if WINDOW:
            seen = seen & (tok[None, :] >= (visible - window)[:, None])
        s = tl.where(seen, s, float("-inf"))
        top = tl.maximum(m, tl.max(s, 1))
        f = tl.exp2(m - top)
        p = tl.exp2(s - top[:, None])
        l = l * f + tl.sum(p, 1)
        m = top
        values = tl.load(v_row + v_at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
        if FP8 == 3:
            values = values.to(tl.float16)
        elif FP8 > 0:
            values = _widen(values, FP8)
        if WIDE:
            values = values.to(tl.float32)
        o = o * f[:, None] + tl.dot(p.to(values.dtype), values)

    if count == 1:
        _finish(o, m, l, v_factor, rows, b, h, out, lse, sinks, o_stride_t, o_stride_h, heads_kv * GROUP,
                GROUP, Q_LEN, D, SINKS, LSE)  # fmt: skip
    else:
        slot = (w * heads_kv + h).to(tl.int64) * (GROUP * Q_LEN)
        tl.store(part_ml + (slot + rows) * 2, m, mask=real)
        tl.store(part_ml + (slot + rows) * 2 + 1, l, mask=real)
        tl.store(part_o + (slot + rows)[:, None] * D + dims[None, :], o, mask=real[:, None])
        # Few pieces are merged at once; many first in sets of FAN, whose results are then merged. One program merging them
        # all would read them in many round trips to the second-level cache, while the other processors have nothing to do.
        sets = (count + FAN - 1) // FAN
        final = count <= 2 * FAN
        few = tl.arange(0, COLS)
        own = few < GROUP * Q_LEN
        if count > 2 * FAN:
            head = begin + piece // FAN * FAN  # the set's first program; its slot takes the set's result
            members = tl.minimum(FAN, begin + count - head)
            tl.debug_barrier()  # the stores of all threads come before the one thread's release
            done = tl.atomic_add(set_counters + head * heads_kv + h, 1, sem="acq_rel")
            final = done == members - 2  # from -1 upwards: all others have been here
            if final:
                tl.store(set_counters + head * heads_kv + h, -1)
                m1, l1, o1 = _merge(part_ml, part_o, head, members, 1, h, heads_kv, GROUP * Q_LEN, COLS, D, UNROLL)
                tl.debug_barrier()  # every thread has read the slot before any writes it
                slot = (head * heads_kv + h).to(tl.int64) * (GROUP * Q_LEN)
                tl.store(part_ml + (slot + few) * 2, m1, mask=own)
                tl.store(part_ml + (slot + few) * 2 + 1, l1, mask=own)
                tl.store(part_o + (slot + few)[:, None] * D + dims[None, :], o1, mask=own[:, None])
        if final:
            parts = tl.where(count > 2 * FAN, sets, count)
            tl.debug_barrier()
            done = tl.atomic_add(counters + b * heads_kv + h, 1, sem="acq_rel")
            if done == parts - 2:
                tl.store(counters + b * heads_kv + h, -1)
                apart = tl.where(count > 2 * FAN, FAN, 1)
                m2, l2, o2 = _merge(part_ml, part_o, begin, parts, apart, h, heads_kv, GROUP * Q_LEN, COLS, D, UNROLL)
                _finish(o2, m2, l2, v_factor, few, b, h, out, lse, sinks, o_stride_t, o_stride_h, heads_kv * GROUP,
                        GROUP, Q_LEN, D, SINKS, LSE)  # fmt: skip
