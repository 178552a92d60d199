// Ending a row: merge the warps of a block in shared memory, then the blocks that share the row in global memory.
//
// There is no second kernel. Blocks that hold part of a row leave an unnormalised partial result in scratch and bump the
// row's counter; whoever arrives last merges all parts in block order, so results do not depend on timing, and puts the
// counter back to zero, so a CUDA graph can replay the launch.
#pragma once
#include "schedule.cuh"
#include "tile.cuh"

namespace upkernel {
namespace paged_decode {

struct Row {
  int b, h;
  int begin, end;    // flat tiles of the whole row
};

// Normalises four neighbouring dims of one head and stores them; `first` is true in one thread of the head.
template <class C>
__device__ __forceinline__ void store_output(const Params& p, const Row& row, int head, int dim, float4 o, float m,
                                             float l, bool first) {
  const int hq = row.h * p.group + head;
  if (p.sinks && l >= 0.f) {
    float sink = __ldg(p.sinks + hq) * 1.4426950408889634f;
    float top = fmaxf(m, sink);
    float f = ptx::exp2_approx(m - top);
    o.x *= f, o.y *= f, o.z *= f, o.w *= f;
    bool none = l == 0.f;
    l = l * f + ptx::exp2_approx(sink - top);
    m = top;
    if (none) o = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  const float v_scale = p.v_scale * (p.v_scale_ptr ? __ldg(p.v_scale_ptr + row.h * p.scale_stride) : 1.f);
  // l == 0 only for an empty request: its single tile was read from page 0, whose content nobody vouches for.
  const float f = v_scale / l;
  if (l == 0.f) o = make_float4(0.f, 0.f, 0.f, 0.f);
  else o = make_float4(o.x * f, o.y * f, o.z * f, o.w * f);
  char* dst = static_cast<char*>(p.out) + 2 * (row.b * p.o_stride_b + hq * p.o_stride_h + dim);
  using T = typename C::QType;
  *reinterpret_cast<uint2*>(dst) = make_uint2(ptx::pack(T{}, o.x, o.y), ptx::pack(T{}, o.z, o.w));
  if (p.lse && first)
    p.lse[int64_t(row.b) * p.heads_kv * p.group + hq] = l == 0.f ? -INFINITY : (m + __log2f(l)) * p.lse_mult;
}

// Last arriver: thread-parallel over (head, four dims), a few parts in flight at a time.
template <class C>
__device__ __forceinline__ void merge_parts(const Params& p, const Row& row, int first_block, int last_block) {
  constexpr int VEC = C::D / 4;
  constexpr int UNROLL = 8;  // one L2 round trip is about 600 cycles, so loads of several parts go out together
  for (int i = threadIdx.x; i < p.group * VEC; i += C::THREADS) {
    const int head = i / VEC, d4 = i % VEC;
    float m = kNoMax, l = 0.f;
    float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
    for (int blk = first_block; blk <= last_block; blk += UNROLL) {
      float2 ml[UNROLL];
      float4 x[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        const int src = min(blk + u, last_block);
        const int64_t slot = (2 * src + (src == first_block)) * int64_t(p.group) + head;
        ml[u] = __ldcg(p.part_ml + slot);
        x[u] = __ldcg(reinterpret_cast<const float4*>(p.part_o + slot * C::D) + d4);
      }
      float top = m;
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        if (blk + u > last_block) ml[u] = make_float2(kNoMax, 0.f);
        top = fmaxf(top, ml[u].x);
      }
      float f = ptx::exp2_approx(m - top);
      l *= f, o.x *= f, o.y *= f, o.z *= f, o.w *= f;
      m = top;
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        f = blk + u > last_block ? 0.f : ptx::exp2_approx(ml[u].x - top);
        l += ml[u].y * f;
        o.x += x[u].x * f, o.y += x[u].y * f, o.z += x[u].z * f, o.w += x[u].w * f;
      }
    }
    store_output<C>(p, row, head, 4 * d4, o, m, l, d4 == 0);
  }
}

struct EpilogueSmem {
  float* ml;    // [parity][m, l][warp][NT * 8]
  float* o;     // [warp][group][RED_PITCH]
  int* flag;
};

// Called by all threads of the block for every row that the block's share touches.
template <class C>
__device__ __forceinline__ void finish_row(RowState<C>& st, const Params& p, const Share& share, const Row& row,
                                           const EpilogueSmem& sm, int parity, int block, int warp, int lane) {
  constexpr int HEADS = C::NT * 8;
  const int g = lane >> 2, t = lane & 3;
  float* s_m = sm.ml + parity * 2 * C::WARPS * HEADS;
  float* s_l = s_m + C::WARPS * HEADS;
#pragma unroll
  for (int n = 0; n < C::NT; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float x = st.l[n][i];
      x += __shfl_xor_sync(kFull, x, 4);
      x += __shfl_xor_sync(kFull, x, 8);
      x += __shfl_xor_sync(kFull, x, 16);
      if (g == 0) {
        s_m[warp * HEADS + n * 8 + 2 * t + i] = st.m[n][i];
        s_l[warp * HEADS + n * 8 + 2 * t + i] = x;
      }
    }
  // Also the barrier after which nobody reads sm.o of the row before; sm.ml alternates for the same reason.
  __syncthreads();
#pragma unroll
  for (int n = 0; n < C::NT; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = n * 8 + 2 * t + i;
      float top = kNoMax;
#pragma unroll
      for (int w = 0; w < C::WARPS; ++w) top = fmaxf(top, s_m[w * HEADS + head]);
      const float f = ptx::exp2_approx(st.m[n][i] - top);
      if (head < p.group) {
        float* dst = sm.o + (warp * p.group + head) * C::RED_PITCH;
#pragma unroll
        for (int j = 0; j < C::MTILES; ++j) {
          dst[C::out_dim(j, 0, g)] = st.o[j][n][i] * f;
          dst[C::out_dim(j, 1, g)] = st.o[j][n][i + 2] * f;
        }
      }
    }
  __syncthreads();
  const bool whole = row.begin >= share.begin && row.end <= share.end;
  // Slot 2i+1 for the row that begins in block i, 2i for one that began earlier.
  const int64_t slot0 = int64_t(2 * block + (row.begin >= share.begin)) * p.group;
  constexpr int VEC = C::D / 4;
  for (int i = threadIdx.x; i < p.group * VEC; i += C::THREADS) {
    const int head = i / VEC, d4 = i % VEC;
    float top = kNoMax, l = 0.f;
#pragma unroll
    for (int w = 0; w < C::WARPS; ++w) top = fmaxf(top, s_m[w * HEADS + head]);
    float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int w = 0; w < C::WARPS; ++w) {
      l += s_l[w * HEADS + head] * ptx::exp2_approx(s_m[w * HEADS + head] - top);
      float4 x = *reinterpret_cast<const float4*>(sm.o + (w * p.group + head) * C::RED_PITCH + 4 * d4);
      o.x += x.x, o.y += x.y, o.z += x.z, o.w += x.w;
    }
    if (whole) {
      store_output<C>(p, row, head, 4 * d4, o, top, l, d4 == 0);
    } else {
      __stcg(reinterpret_cast<float4*>(p.part_o + (slot0 + head) * C::D) + d4, o);
      if (d4 == 0) __stcg(p.part_ml + slot0 + head, make_float2(top, l));
    }
  }
  if (whole) return;
  __threadfence();
  __syncthreads();
  const int first = owner_of(row.begin, share.total, share.workers);
  const int last = owner_of(row.end - 1, share.total, share.workers);
  if (threadIdx.x == 0) {
    int* counter = p.counters + row.b * p.heads_kv + row.h;
    const int before = atomicAdd(counter, 1);
    *sm.flag = before == last - first;
    if (before == last - first) *counter = 0;
  }
  __syncthreads();
  if (*sm.flag) {
    __threadfence();
    merge_parts<C>(p, row, first, last);
  }
}

}  // namespace paged_decode
}  // namespace upkernel
