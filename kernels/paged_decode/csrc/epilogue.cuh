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
__device__ __forceinline__ bool is_empty(float x) { return __float_as_uint(x) == kEmpty; }
__device__ __forceinline__ bool is_empty(float2 v) { return is_empty(v.x) || is_empty(v.y); }
__device__ __forceinline__ bool is_empty(float4 v) {
  return is_empty(v.x) || is_empty(v.y) || is_empty(v.z) || is_empty(v.w);
}

// Normalises four neighbouring dims of one head and stores them; `first` is true in one thread of the head.
template <class C>
__device__ __forceinline__ void store_output(const Params& p, int b, int h, int head, int dim, float4 o, float m, float l,
                                             bool first) {
  const int hq = h * p.group + head;
  // l == 0 only for an empty request: its single tile was read from page 0, whose content nobody vouches for.
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
  const float f = l == 0.f ? 0.f : v_scale / l;
  char* dst = static_cast<char*>(p.out) + 2 * (b * p.o_stride_b + hq * p.o_stride_h + dim);
  using T = typename C::QType;
  *reinterpret_cast<uint2*>(dst) = make_uint2(ptx::pack(T{}, o.x * f, o.y * f), ptx::pack(T{}, o.z * f, o.w * f));
  if (p.lse && first)
    p.lse[int64_t(b) * p.heads_kv * p.group + hq] = l == 0.f ? -INFINITY : (m + __log2f(l)) * p.lse_mult;
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
  constexpr int UNROLL = 8;  // one L2 round trip is about 600 cycles: ask for many parts at once
  const int last = team.id;
  const float hole = __uint_as_float(kEmpty);
#pragma unroll 1
  for (int i = team.thread(lane); i < p.group * VEC; i += team.threads()) {
    const int head = i / VEC, d4 = i % VEC;
    float m = kNoMax, l = 0.f;
    float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
    for (int blk = first; blk <= last; blk += UNROLL) {
      float2 ml[UNROLL];
      float4 x[UNROLL];
      float2* ml_src[UNROLL];
      float4* x_src[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        const int src = min(blk + u, last);  // past the end: the last one again, with weight 0
        const int64_t slot = (2 * src + (src == first)) * int64_t(p.group) + head;
        ml_src[u] = p.part_ml + slot;
        x_src[u] = reinterpret_cast<float4*>(p.part_o + slot * C::D) + d4;
      }
      // All parts are asked for together, again and again until all are there: asking for them in turn would cost a
      // round trip for each part that is late.
      bool missing;
      do {
        missing = false;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
          ml[u] = ptx::load_relaxed(ml_src[u]);
          x[u] = ptx::load_relaxed(x_src[u]);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) missing |= is_empty(ml[u]) || is_empty(x[u]);
      } while (missing);
      float top = m;
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        if (blk + u > last) ml[u] = make_float2(kNoMax, 0.f);
        else top = fmaxf(top, ml[u].x);
      }
      float f = ptx::exp2_approx(m - top);
      l *= f, o.x *= f, o.y *= f, o.z *= f, o.w *= f;
      m = top;
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        f = blk + u > last ? 0.f : ptx::exp2_approx(ml[u].x - top);
        l += ml[u].y * f;
        o.x += x[u].x * f, o.y += x[u].y * f, o.z += x[u].z * f, o.w += x[u].w * f;
      }
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) ptx::store_relaxed(x_src[u], make_float4(hole, hole, hole, hole));
    }
    store_output<C>(p, b, h, head, 4 * d4, o, m, l, d4 == 0);
  }
  // All threads of a head read its (m, l), so they are emptied only when everybody is done.
  team.sync();
#pragma unroll 1
  for (int i = team.thread(lane); i < (last - first + 1) * p.group; i += team.threads()) {
    const int blk = first + i / p.group;
    ptx::store_relaxed(p.part_ml + (2 * blk + (blk == first)) * int64_t(p.group) + i % p.group, make_float2(hole, hole));
  }
}

struct EpilogueSmem {
  float* ml;    // [parity][m, l][warp][NT * 8]
  float* o;     // [warp][group][RED_PITCH]
};

// Merges the warps. Called by all threads of the team for every row that the team's share touches.
template <class C>
__device__ __forceinline__ void finish_row(RowState<C>& st, const Params& p, const Share& share, const Row& row,
                                           const EpilogueSmem& sm, int parity, const Team& team, int lane) {
  constexpr int HEADS = C::NT * 8;
  const int g = lane >> 2, t = lane & 3;
  float* s_m = sm.ml + (parity * 2 * C::WARPS + team.first) * HEADS;
  float* s_l = s_m + C::WARPS * HEADS;
  float* s_o = sm.o + team.first * p.group * C::RED_PITCH;
#pragma unroll
  for (int n = 0; n < C::NT; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int d = 4; d < 32; d *= 2) st.l[n][i] += __shfl_xor_sync(kFull, st.l[n][i], d);
    if (g == 0) {
      const int at = team.rank * HEADS + n * 8 + 2 * t;
      *reinterpret_cast<float2*>(s_m + at) = make_float2(st.m[n][0], st.m[n][1]);
      *reinterpret_cast<float2*>(s_l + at) = make_float2(st.l[n][0], st.l[n][1]);
    }
  }
  // Also the barrier after which nobody reads sm.o of the row before; sm.ml alternates for the same reason.
  team.sync();
  float top[C::NT][2], sum[C::NT][2];  // of the team, heads 2t and 2t + 1
#pragma unroll
  for (int n = 0; n < C::NT; ++n) {
    // Lane g looks at warp g: three shuffles instead of a loop over the warps.
    const int at = min(g, team.warps - 1) * HEADS + n * 8 + 2 * t;
    const float2 m = *reinterpret_cast<const float2*>(s_m + at);
    const float2 l = *reinterpret_cast<const float2*>(s_l + at);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float mi = i ? m.y : m.x;
      float x = mi;
#pragma unroll
      for (int d = 4; d < 32; d *= 2) x = fmaxf(x, __shfl_xor_sync(kFull, x, d));
      top[n][i] = x;
      x = g < team.warps ? (i ? l.y : l.x) * ptx::exp2_approx(mi - x) : 0.f;
#pragma unroll
      for (int d = 4; d < 32; d *= 2) x += __shfl_xor_sync(kFull, x, d);
      sum[n][i] = x;
      const int head = n * 8 + 2 * t + i;
      const float f = ptx::exp2_approx(st.m[n][i] - top[n][i]);
      if (head < p.group) {
        float* dst = s_o + (team.rank * p.group + head) * C::RED_PITCH;
#pragma unroll
        for (int j = 0; j < C::MTILES; ++j) {
          dst[C::out_dim(j, 0, g)] = st.o[j][n][i] * f;
          dst[C::out_dim(j, 1, g)] = st.o[j][n][i + 2] * f;
        }
        // The padding behind a row of the first warp carries the row's (m, l) to the threads that finish it.
        if (team.rank == 0 && g == 0) *reinterpret_cast<float2*>(dst + C::D) = make_float2(top[n][i], sum[n][i]);
      }
    }
  }
  team.sync();
  const bool whole = row.begin >= share.begin && row.end <= share.end;
  const int64_t slot0 = int64_t(2 * team.id + (row.begin >= share.begin)) * p.group;
  constexpr int VEC = C::D / 4;
#pragma unroll 1
  for (int i = team.thread(lane); i < p.group * VEC; i += team.threads()) {
    const int head = i / VEC, d4 = i % VEC;
    const float2 ml = *reinterpret_cast<const float2*>(s_o + head * C::RED_PITCH + C::D);
    float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int w = 0; w < C::WARPS; ++w)
      if (w < team.warps) {
        const float4 x = *reinterpret_cast<const float4*>(s_o + (w * p.group + head) * C::RED_PITCH + 4 * d4);
        o.x += x.x, o.y += x.y, o.z += x.z, o.w += x.w;
      }
    if (whole) {
      store_output<C>(p, row.b, row.h, head, 4 * d4, o, ml.x, ml.y, d4 == 0);
    } else {
      o = make_float4(not_empty(o.x), not_empty(o.y), not_empty(o.z), not_empty(o.w));
      ptx::store_relaxed(reinterpret_cast<float4*>(p.part_o + (slot0 + head) * C::D) + d4, o);
      if (d4 == 0) ptx::store_relaxed(p.part_ml + slot0 + head, make_float2(not_empty(ml.x), not_empty(ml.y)));
    }
  }
}

}  // namespace paged_decode
}  // namespace upkernel
