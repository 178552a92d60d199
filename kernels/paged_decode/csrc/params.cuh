// What one launch needs, as plain data: raw pointers, strides and sizes. No framework type appears here.
#pragma once
#include <cstddef>
#include <cstdint>

namespace upkernel {
namespace paged_decode {

// Clock values of thread 0 of each block at numbered points, for builds that look for lost time.
#ifdef UPK_TRACE
#define UPK_MARK(k) \
  if (p.trace && threadIdx.x == 0) p.trace[blockIdx.x * 16 + (k)] = clock64()
#else
#define UPK_MARK(k)
#endif

enum class DType : int { kF16 = 0, kBF16 = 1, kE4M3 = 2, kE5M2 = 3 };

// The part of the schedule (schedule.cuh) that follows from host-known values; see make_plan().
struct Plan {
  int rows;        // batch * heads_kv
  int team_shift;  // log2(warps in a team)
  int teams;       // in the grid
  int pieces;      // teams that share a row, where there are at least as many teams as rows; else 0
  int workers;     // teams that get work, unless the lengths are so short that fewer are better
};

struct Params {
  // Device inputs.
  const void* q;               // [batch * q_len, heads_q, D], 16-bit
  const void* k;               // pages; element (page, pos, head, d) at page*kv_page + pos*kv_tok + head*kv_head
  const void* v;               // same strides as k
  const int32_t* block_table;  // [batch, table_stride], or the concatenated page list if indptr is given
  const int32_t* indptr;       // [batch + 1] or null
  const int32_t* seq_lens;     // [batch], tokens to attend to, the new one included; 0 is allowed
  const float* k_scale_ptr;    // null, or one value (scale_stride 0), or one per KV head (scale_stride 1)
  const float* v_scale_ptr;
  const float* sinks;          // null, or one logit per query head that joins the softmax but has no value

  // Device outputs.
  void* out;   // [batch * q_len, heads_q, D], dtype of q
  float* lse;  // null, or [batch * q_len, heads_q] contiguous

  // Scratch, see scratch_layout(). All bits set before the first launch; every launch leaves it so.
  float2* part_ml;  // [2 * grid * warps, group]
  float* part_o;    // [2 * grid * warps, group, D]
  long long* trace;  // only with UPK_TRACE: [grid, 16] clock values

  int64_t q_stride_b, q_stride_h;  // elements
  int64_t o_stride_b, o_stride_h;  // elements
  // KV strides count 16-byte units. A 32-bit offset then spans 64 GiB per cache tensor, and one shuffle moves it.
  uint32_t kv_page, kv_tok, kv_head;

  // `group` columns of work share a KV head: the query heads of its group, for each of the q_len newest tokens.
  int batch, heads_kv, group;
  int q_len, heads;  // group = q_len * heads; both are read only by kernels built for more than one query
  int page_shift;    // log2(page size)
  int table_stride;  // entries
  int table_width;   // entries of one row that exist
  int window;        // 0: none; else a query sees only the last `window` of its tokens
  int min_tiles;     // smallest share of tiles worth a team of its own
  Plan plan;
  int scale_stride;
  float k_scale, v_scale;  // multiplied with the device scales, if any
  float sm_scale;
  float soft_cap;       // 0: none; else logits become soft_cap * tanh(logits / soft_cap)
  float lse_mult;       // ln 2 for natural-log LSE, 1 for base 2
};

// Team size: with one row or less for a block the whole block works on it; with more, smaller teams work on several rows
// at once, because the end of a row (merging the warps, the next query) is a pause for the team.
// Workers: with equal lengths a multiple or a divisor of the row count lets every share end on a row boundary or cut each
// row into the same few pieces, so teams write outputs directly or merge little. It is taken when it leaves at most a
// tenth of the teams idle: HBM is saturated well before the last SMs join in.
inline Plan make_plan(int batch, int heads_kv, int grid, int warps) {
  Plan s = {};
  s.rows = batch * heads_kv;
  int team = warps;
  while (team > 1 && s.rows > int64_t(grid) * (warps / team)) team /= 2;
  while ((1 << s.team_shift) < team) ++s.team_shift;
  s.teams = grid * (warps / team);
  if (s.rows <= s.teams) {
    s.pieces = s.teams / s.rows;
    s.workers = s.rows * s.pieces;
  } else {
    const int per = (s.rows + s.teams - 1) / s.teams;
    s.workers = (s.rows + per - 1) / per;
  }
  if (s.workers * 10 < s.teams * 9) s.workers = s.teams;
  return s;
}

// Which query token and head a column of a row (request b, KV head h) is: columns run over the heads of the group first.
struct Column {
  int64_t token;  // row of q, out and lse
  int query;      // 0 .. q_len - 1, oldest first
  int head;       // of q
};

#ifdef __CUDACC__
template <class C>
__device__ __forceinline__ Column column_of(const Params& p, int b, int h, int column) {
  if constexpr (!C::MANY) return Column{b, 0, h * p.group + column};
  const int query = column / p.heads;
  return Column{int64_t(b) * p.q_len + query, query, h * p.heads + column - query * p.heads};
}
#endif

struct ScratchLayout {
  size_t part_ml, part_o, bytes;  // byte offsets and the total
};

// A team (schedule.cuh) leaves at most two unfinished rows behind: the one it began in the middle and the one it could
// not finish. Hence two slots a warp, whatever the batch: 35 MB for 132 blocks of 8 warps, 16 heads, head_dim 256.
inline ScratchLayout scratch_layout(int group, int head_dim, int warps) {
  auto up = [](size_t x) { return (x + 255) / 256 * 256; };
  ScratchLayout s;
  s.part_ml = 0;
  s.part_o = up(size_t(2) * warps * group * sizeof(float2));
  s.bytes = s.part_o + up(size_t(2) * warps * group * head_dim * sizeof(float));
  return s;
}

}  // namespace paged_decode
}  // namespace upkernel
