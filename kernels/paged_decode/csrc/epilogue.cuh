// Ending a row: merge the warps of a team in shared memory, then the teams that share the row in global memory.
//
// There is no second kernel and no atomic. A team that holds part of a row leaves an unnormalised partial result in
// its own scratch slot; the last team of the row merges the parts in order, so results do not depend on timing.
// The data are their own flag: a slot holds the bit pattern kEmpty in every word until its owner writes it, and the
// merging team polls the words that it needs and puts kEmpty back. Against a counter this saves, on the critical path
// of a short kernel, the fence that waits for the stores, the round trip of the atomic and a second fence.
//
// Waiting is safe because a team only ever waits for teams of lower index, which the hardware starts first (or which sit
// in the same block), and only after it has done all of its own work.
#pragma once
#include "schedule.cuh"
#include "tile.cuh"

namespace upkernel {
namespace paged_decode {

struct Row {
  int b, h;
  int begin, end;    // flat tiles of the whole row
};

constexpr unsigned kEmpty = 0xffffffffu;

// Arithmetic only makes the NaN 0x7fffffff, but an input NaN could carry any payload.
__device__ __forceinline__ float not_empty(float x) {
  return __float_as_uint(x) == kEmpty ? __uint_as_float(0x7fffffffu) : x;
}
// kEmpty is the largest unsigned, so one maximum over all words tells whether any is still empty. No branch must come
// between the loads: the compiler would wait for each before it issues the next.
__device__ __forceinline__ unsigned words_max(float2 v) { return max(__float_as_uint(v.x), __float_as_uint(v.y)); }
__device__ __forceinline__ unsigned words_max(float4 v) {
  return max(words_max(make_float2(v.x, v.y)), words_max(make_float2(v.z, v.w)));
}

// Normalises four neighbouring dims of one head and stores them; `first` is true in one thread of the head.
template <class C>
__device__ __forceinline__ void store_output(const Params& p, int b, int h, int head, int dim, float4 o, float m, float l,
                                             bool first) {
  const Column c = column_of<C>(p, b, h, head);
  const int hq = c.head;
  // l == 0 where a query sees no token. An empty request's single tile was read from page 0, whose content nobody vouches
  // for.
  if (l == 0.f) o = make_float4(0.f, 0.f, 0.f, 0.f);
  if (p.sinks) {
    const float sink = __ldg(p.sinks + hq) * 1.4426950408889634f;
    const float top = fmaxf(m, sink);
    const float f = ptx::exp2_approx(m - top);
    o.x *= f, o.y *= f, o.z *= f, o.w *= f;
    l = l * f + ptx::exp2_approx(sink - top);
    m = top;
  }
  const float v_scale = p.v_scale * (p.v_scale_ptr ? __ldg(p.v_scale_ptr + h * p.scale_stride) : 1.f);
  const float f = l == 0.f ? 0.f : __fdividef(v_scale, l);
  char* dst = static_cast<char*>(p.out) + 2 * (c.token * p.o_stride_b + hq * p.o_stride_h + dim);
  using T = typename C::QType;
  const uint2 packed = make_uint2(ptx::pack(T{}, o.x * f, o.y * f), ptx::pack(T{}, o.z * f, o.w * f));
  *reinterpret_cast<uint2*>(dst) = packed;
  if (p.lse && first)
    p.lse[c.token * p.heads_kv * (C::MANY ? p.heads : p.group) + hq] = l == 0.f ? -INFINITY : (m + __log2f(l)) * p.lse_mult;
}

// The threads that share a row: `team` warps of one block.
struct Team {
  int id;       // over the whole grid
  int warps;    // in the team
  int rank;     // of this warp in the team
  int first;    // warp of the block with rank 0
  __device__ __forceinline__ int threads() const { return warps * 32; }
  __device__ __forceinline__ int thread(int lane) const { return rank * 32 + lane; }
  __device__ __forceinline__ void sync() const {
    if (warps > 1) ptx::barrier(1 + first, threads());
    else __syncwarp();
  }
};

// Merges the parts of teams first..last of one row; called by all threads of team `last`, as its final act.
// Slot 2i+1 belongs to the row that begins in team i, slot 2i to one that began earlier.
template <class C>
__device__ __forceinline__ void merge_parts(const Params& p, const Team& team, int lane, int b, int h, int first) {
  constexpr int VEC = C::D / 4;
  constexpr int UNROLL = C::NT == 1 && C::D <= 128 ? 16 : 4;  // parts asked for at once; an L2 round trip is about 800 cycles
  const float hole = __uint_as_float(kEmpty);
  const int parts = team.id - first + 1;
#pragma unroll 1
  for (int i = team.thread(lane); i < p.group * VEC; i += team.threads()) {
    const int head = i / VEC, d4 = i % VEC;
    float m = kNoMax, l = 0.f;
    float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
    for (int part = 0; part < parts; part += UNROLL) {
      float2 ml[UNROLL];
      float4 x[UNROLL];
      int slot[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        const int src = min(part + u, parts - 1);  // past the end: the last part again, with weight 0
        slot[u] = (2 * (first + src) + (src == 0)) * p.group + head;
      }
      // All parts are asked for together, again and again until all are there: asking for them in turn would cost a
      // round trip for each part that is late.
      unsigned worst;
      do {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
          ml[u] = ptx::load_relaxed(p.part_ml + slot[u]);
          x[u] = ptx::load_relaxed(reinterpret_cast<const float4*>(p.part_o) + (int64_t(slot[u]) * VEC + d4));
        }
        worst = 0;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) worst = max(worst, max(words_max(ml[u]), words_max(x[u])));
      } while (worst == kEmpty);
      float top = m;
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) top = fmaxf(top, ml[u].x);
      float f = ptx::exp2_approx(m - top);
      l *= f, o.x *= f, o.y *= f, o.z *= f, o.w *= f;
      m = top;
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        f = part + u < parts ? ptx::exp2_approx(ml[u].x - top) : 0.f;
        l += ml[u].y * f;
        o.x += x[u].x * f, o.y += x[u].y * f, o.z += x[u].z * f, o.w += x[u].w * f;
      }
#pragma unroll
      for (int u = 0; u < UNROLL; ++u)
        if (part + u < parts)
          ptx::store_relaxed(reinterpret_cast<float4*>(p.part_o) + (int64_t(slot[u]) * VEC + d4),
                             make_float4(hole, hole, hole, hole));
    }
    store_output<C>(p, b, h, head, 4 * d4, o, m, l, d4 == 0);
  }
  // All threads of a head read its (m, l), so they are emptied only when everybody is done.
  team.sync();
#pragma unroll 1
  for (int part = team.rank; part < parts; part += team.warps)
    if (lane < p.group)
      ptx::store_relaxed(p.part_ml + (2 * (first + part) + (part == 0)) * p.group + lane, make_float2(hole, hole));
}

struct EpilogueSmem {
  float* ml;    // [warp][NT * 8][m, l]
  float* o;     // [warp][group][RED_PITCH]
};

// Merges the warps. Called by all threads of the team for every row that the team's share touches; `again` after the
// first of them.
template <class C>
__device__ __forceinline__ void finish_row(RowState<C>& st, const Params& p, const Share& share, const Row& row,
                                           const EpilogueSmem& sm, bool again, const Team& team, int lane) {
  constexpr int HEADS = C::NT * 8;
  const int g = lane >> 2, t = lane & 3;
  float2* const s_ml = reinterpret_cast<float2*>(sm.ml) + team.first * HEADS;
  float* const s_o = sm.o + team.first * p.group * C::RED_PITCH;
  // Sums over the eight lanes of a column; the chains of all columns run side by side.
#pragma unroll
  for (int d = 4; d < 32; d *= 2)
#pragma unroll
    for (int n = 0; n < C::NT; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) st.l[n][i] += __shfl_xor_sync(kFull, st.l[n][i], d);
  if (again) team.sync();  // nobody reads the row before any more
#pragma unroll
  for (int n = 0; n < C::NT; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = n * 8 + 2 * t + i;
      if (g == 0) s_ml[team.rank * HEADS + head] = make_float2(st.m[n][i], st.l[n][i]);
      float* const dst = s_o + (team.rank * p.group + head) * C::RED_PITCH;
      if (head < p.group) {
#pragma unroll
        for (int j = 0; j < C::MTILES; ++j) {
          dst[C::out_dim(j, 0, g)] = st.o[j][n][i];
          dst[C::out_dim(j, 1, g)] = st.o[j][n][i + 2];
        }
      }
    }
  UPK_MARK(11);
  team.sync();
  UPK_MARK(12);
  const bool whole = row.begin >= share.begin && row.end <= share.end;
  const int slot0 = (2 * team.id + (row.begin >= share.begin)) * p.group;
  constexpr int VEC = C::D / 4;
#pragma unroll 1
  for (int i = team.thread(lane); i < p.group * VEC; i += team.threads()) {
    const int head = i / VEC, d4 = i % VEC;
    // Every warp has its own reference point m, so its part is scaled here. Warps beyond the team weigh nothing; they
    // are read anyway (their memory exists) so that all loads go out at once.
    float2 ml[C::WARPS];
    float4 x[C::WARPS];
#pragma unroll
    for (int w = 0; w < C::WARPS; ++w) {
      const int src = min(w, team.warps - 1);
      ml[w] = s_ml[src * HEADS + head];
      x[w] = *reinterpret_cast<const float4*>(s_o + (src * p.group + head) * C::RED_PITCH + 4 * d4);
    }
    float top = ml[0].x;
#pragma unroll
    for (int w = 1; w < C::WARPS; ++w) top = fmaxf(top, ml[w].x);
    float l = 0.f;
    float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int w = 0; w < C::WARPS; ++w) {
      const float f = w < team.warps ? ptx::exp2_approx(ml[w].x - top) : 0.f;
      l += ml[w].y * f;
      o.x += x[w].x * f, o.y += x[w].y * f, o.z += x[w].z * f, o.w += x[w].w * f;
    }
    if (whole) {
      store_output<C>(p, row.b, row.h, head, 4 * d4, o, top, l, d4 == 0);
    } else {
      o = make_float4(not_empty(o.x), not_empty(o.y), not_empty(o.z), not_empty(o.w));
      ptx::store_relaxed(reinterpret_cast<float4*>(p.part_o) + int64_t(slot0 + head) * VEC + d4, o);
      if (d4 == 0) ptx::store_relaxed(p.part_ml + slot0 + head, make_float2(not_empty(top), not_empty(l)));
    }
  }
}

}  // namespace paged_decode
}  // namespace upkernel
