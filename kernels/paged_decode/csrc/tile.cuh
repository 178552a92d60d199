// Attention over one tile held in shared memory, by one warp, on tensor cores.
//
// The operands are swapped against the textbook order: S^T = K Q^T and O^T = V^T P^T. The 16-row side of
// mma.m16n8k16 is then the tokens (or the head dims), and the query heads of one KV head sit on the 8-column side, so a
// group of 4 wastes half of the tensor core instead of three quarters and O needs 32 registers a thread at D = 128.
#pragma once
#include "traits.cuh"

namespace upkernel {
namespace paged_decode {

// State of one row's online softmax in one warp. Columns 2t and 2t+1 (heads) of each n-tile live in this lane.
template <class C>
struct RowState {
  uint32_t q[C::KSTEPS][C::NT][2];  // B fragments
  float scale[C::NT][2];            // to log2 units
  float m[C::NT][2], l[C::NT][2];   // m is warp-uniform per head, l is this lane's part
  float o[C::MTILES][C::NT][4];
};

constexpr float kNoMax = -1e30f;  // finite, so that differences never become NaN

// Raw query fragments of a row, loaded ahead of time: this lane's column is head n*8 + g.
template <class C>
struct Query {
  uint32_t x[C::KSTEPS][C::NT][2];
  float k_scale;
};

template <class C>
__device__ __forceinline__ void load_query(Query<C>& q, const Params& p, int b, int h, int lane) {
  const int g = lane >> 2, t = lane & 3;
  q.k_scale = p.k_scale_ptr ? __ldg(p.k_scale_ptr + h * p.scale_stride) : 1.f;
#pragma unroll
  for (int n = 0; n < C::NT; ++n) {
    const int head = n * 8 + g;
    const bool real = head < p.group;
    const Column c = column_of<C>(p, b, h, real ? head : 0);
    const char* src = static_cast<const char*>(p.q) + 2 * (c.token * p.q_stride_b + c.head * p.q_stride_h);
    // Only the pairing of K and Q along the dims matters, not their order. For 8-bit caches a lane's four consecutive
    // bytes of K become (a0, a2), so Q takes four consecutive dims as well.
#pragma unroll
    for (int j = 0; j < C::KSTEPS; ++j) {
      uint32_t x = 0, y = 0;
      if (real) {
        if constexpr (C::KV8) {
          const uint2 two = *reinterpret_cast<const uint2*>(src + 2 * (16 * j + 4 * t));
          x = two.x, y = two.y;
        } else {
          x = *reinterpret_cast<const uint32_t*>(src + 2 * (16 * j + 2 * t));
          y = *reinterpret_cast<const uint32_t*>(src + 2 * (16 * j + 2 * t + 8));
        }
      }
      q.x[j][n][0] = x, q.x[j][n][1] = y;
    }
  }
}

template <class C>
__device__ __forceinline__ void start_row(RowState<C>& st, const Query<C>& q, const Params& p, int lane) {
  const int t = lane & 3;
  const float base = p.sm_scale * p.k_scale * q.k_scale * (p.soft_cap > 0.f ? 1.f / p.soft_cap : 1.4426950408889634f);
#pragma unroll
  for (int n = 0; n < C::NT; ++n) {
    float back = 1.f;  // of head n*8 + g
    if constexpr (C::RESCALE_Q) {
      float amax = 0.f;
#pragma unroll
      for (int j = 0; j < C::KSTEPS; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 f = ptx::unpack(typename C::QType{}, q.x[j][n][i]);
          amax = fmaxf(amax, fmaxf(fabsf(f.x), fabsf(f.y)));
        }
      amax = fmaxf(amax, __shfl_xor_sync(kFull, amax, 1));
      amax = fmaxf(amax, __shfl_xor_sync(kFull, amax, 2));
      // 2^e <= amax < 2^(e+1), read from the exponent field; kept where both 2^e and 2^-e are normal floats.
      const int e = min(max(int(__float_as_uint(amax) >> 23), 1), 253);
      back = __uint_as_float(unsigned(e) << 23);
      const float inv = __uint_as_float(unsigned(254 - e) << 23);
#pragma unroll
      for (int j = 0; j < C::KSTEPS; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 f = ptx::unpack(typename C::QType{}, q.x[j][n][i]);
          st.q[j][n][i] = ptx::pack(typename C::MmaType{}, f.x * inv, f.y * inv);
        }
    } else {
#pragma unroll
      for (int j = 0; j < C::KSTEPS; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) st.q[j][n][i] = q.x[j][n][i];
    }
    st.scale[n][0] = base * __shfl_sync(kFull, back, 8 * t);
    st.scale[n][1] = base * __shfl_sync(kFull, back, 8 * t + 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) st.m[n][i] = kNoMax, st.l[n][i] = 0.f;
#pragma unroll
    for (int j = 0; j < C::MTILES; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) st.o[j][n][i] = 0.f;
  }
}

// s[m][n] = K Q^T for 16 tokens a step; raw dot products.
template <class C>
__device__ __forceinline__ void scores(float (&s)[C::TM][C::NT][4], const RowState<C>& st, uint32_t slot, int lane) {
  using M = typename C::MmaType;
  const int row = lane & 15;
  const uint32_t base = slot + row * C::ROW_BYTES + (((lane >> 4) ^ C::swizzle(row)) << 4);
#pragma unroll
  for (int m = 0; m < C::TM; ++m) {
    // Two accumulators: a chain of dependent mma has about 33 cycles a link, and D = 128 would make eight of them.
    float a[2][C::NT][4] = {};
#pragma unroll
    for (int j = 0; j < C::CHUNKS / 2; ++j) {
      uint32_t r[4];
      ptx::ldmatrix_x4(r, (base + m * 16 * C::ROW_BYTES) ^ (j << 5));
#pragma unroll
      for (int n = 0; n < C::NT; ++n) {
        if constexpr (C::KV8) {
          ptx::mma(M{}, a[0][n], widen<C>(r[0]), widen<C>(r[1]), widen<C>(r[0] >> 16), widen<C>(r[1] >> 16),
                   st.q[2 * j][n][0], st.q[2 * j][n][1]);
          ptx::mma(M{}, a[1][n], widen<C>(r[2]), widen<C>(r[3]), widen<C>(r[2] >> 16), widen<C>(r[3] >> 16),
                   st.q[2 * j + 1][n][0], st.q[2 * j + 1][n][1]);
        } else {
          ptx::mma(M{}, a[j & 1][n], r[0], r[1], r[2], r[3], st.q[j][n][0], st.q[j][n][1]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < C::NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][n][i] = a[0][n][i] + a[1][n][i];
  }
}

// Logits in log2 units; tokens outside [lo, len) become -inf. `tok0` is the first token of the tile.
template <class C>
__device__ __forceinline__ void to_logits(float (&s)[C::TM][C::NT][4], const RowState<C>& st, const Params& p,
                                          const int tok0, int lo, int len, int lane) {
  // With several queries, `lo` and `len` are the widest; query i sees [lo + i, len - (q_len - 1) + i).
  const int older = C::MANY ? p.q_len - 1 : 0;
  const bool edge = (p.window > 0 && tok0 < lo + older) || tok0 + C::TOK > len - older;
#pragma unroll
  for (int m = 0; m < C::TM; ++m)
#pragma unroll
    for (int n = 0; n < C::NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][n][i] *= st.scale[n][i & 1];
  if (p.soft_cap > 0.f) {
    // tanh(x) = 1 - 2 / (e^2x + 1); tanh.approx would be off by 2^-11 * cap, far more than a bf16 score error.
    const float cap = p.soft_cap * 1.4426950408889634f;
#pragma unroll
    for (int m = 0; m < C::TM; ++m)
#pragma unroll
      for (int n = 0; n < C::NT; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float ex = ptx::exp2_approx(fminf(s[m][n][i] * 2.8853900817779268f, 126.f));
          s[m][n][i] = cap - 2.f * cap / (ex + 1.f);
        }
  }
  if (edge) {
#pragma unroll
    for (int m = 0; m < C::TM; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int tok = tok0 + m * 16 + (i >> 1) * 8 + (lane >> 2);
        if constexpr (C::MANY) {
#pragma unroll
          for (int n = 0; n < C::NT; ++n) {
            const int query = (n * 8 + 2 * (lane & 3) + (i & 1)) / p.heads;  // past the last for columns that are no query
            const int visible = len - older + query;
            if (tok >= visible || (p.window > 0 && tok < visible - p.window)) s[m][n][i] = -INFINITY;
          }
        } else if (tok < lo || tok >= len) {
#pragma unroll
          for (int n = 0; n < C::NT; ++n) s[m][n][i] = -INFINITY;
        }
      }
  }
}

// Turns logits into probabilities (relative to 2^m) and packs them as B fragments of P^T.
template <class C>
__device__ __forceinline__ void softmax_step(uint32_t (&pf)[C::TM][C::NT][2], float (&s)[C::TM][C::NT][4],
                                             RowState<C>& st) {
  // The running maximum moves only when some logit exceeds it by 2^8. Any reference point gives the same result as
  // long as nothing overflows (f16 takes 2^16), and skipping the update saves six shuffles and the rescaling of O.
  constexpr float kSlack = 8.f;
  float mx[C::NT][2];
  bool grow = false;
#pragma unroll
  for (int n = 0; n < C::NT; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      mx[n][i] = fmaxf(s[0][n][i], s[0][n][i + 2]);
#pragma unroll
      for (int m = 1; m < C::TM; ++m) mx[n][i] = fmaxf(mx[n][i], fmaxf(s[m][n][i], s[m][n][i + 2]));
      grow |= mx[n][i] > st.m[n][i] + kSlack;
    }
  if (__any_sync(kFull, grow)) {
#pragma unroll
    for (int n = 0; n < C::NT; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float x = mx[n][i];
        x = fmaxf(x, __shfl_xor_sync(kFull, x, 4));
        x = fmaxf(x, __shfl_xor_sync(kFull, x, 8));
        x = fmaxf(x, __shfl_xor_sync(kFull, x, 16));
        x = fmaxf(x, st.m[n][i]);
        float f = ptx::exp2_approx(st.m[n][i] - x);
        st.m[n][i] = x;
        st.l[n][i] *= f;
#pragma unroll
        for (int j = 0; j < C::MTILES; ++j) st.o[j][n][i] *= f, st.o[j][n][i + 2] *= f;
      }
  }
#pragma unroll
  for (int m = 0; m < C::TM; ++m)
#pragma unroll
    for (int n = 0; n < C::NT; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[m][n][i] = ptx::exp2_approx(s[m][n][i] - st.m[n][i & 1]);
        st.l[n][i & 1] += s[m][n][i];
      }
      pf[m][n][0] = ptx::movmatrix_trans(ptx::pack(typename C::MmaType{}, s[m][n][0], s[m][n][1]));
      pf[m][n][1] = ptx::movmatrix_trans(ptx::pack(typename C::MmaType{}, s[m][n][2], s[m][n][3]));
    }
}

// O^T += V^T P^T.
template <class C>
__device__ __forceinline__ void accumulate(RowState<C>& st, const uint32_t (&pf)[C::TM][C::NT][2], uint32_t slot,
                                           int lane) {
  using M = typename C::MmaType;
  // Matrix order of the x4 load: 16-bit (tok 0-7, d), (tok 0-7, d+8), (tok 8-15, d), (tok 8-15, d+8) = a0..a3;
  // 8-bit (tok 0-7, c), (tok 8-15, c), (tok 0-7, c+1), (tok 8-15, c+1), where chunk c holds the 16 dims of an m-tile.
  const int row = C::KV8 ? (lane & 15) : ((lane >> 4) * 8 + (lane & 7));
  const int odd = C::KV8 ? (lane >> 4) : ((lane >> 3) & 1);
  const uint32_t base = slot + C::TILE_BYTES + row * C::ROW_BYTES + ((odd ^ C::swizzle(row)) << 4);
#pragma unroll
  for (int m = 0; m < C::TM; ++m)
#pragma unroll
    for (int j = 0; j < C::CHUNKS / 2; ++j) {
      uint32_t r[4];
      ptx::ldmatrix_x4_trans(r, (base + m * 16 * C::ROW_BYTES) ^ (j << 5));
      if constexpr (C::KV8) {
        // A register holds (dims 2g, 2g+1) of token 2t, then of token 2t+1. mma wants two tokens of one dim.
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = __byte_perm(r[i], 0u, 0x3120);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t a0 = widen<C>(x[2 * i]), a1 = widen<C>(x[2 * i] >> 16);
          uint32_t a2 = widen<C>(x[2 * i + 1]), a3 = widen<C>(x[2 * i + 1] >> 16);
#pragma unroll
          for (int n = 0; n < C::NT; ++n) ptx::mma(M{}, st.o[2 * j + i][n], a0, a1, a2, a3, pf[m][n][0], pf[m][n][1]);
        }
      } else {
#pragma unroll
        for (int n = 0; n < C::NT; ++n) ptx::mma(M{}, st.o[j][n], r[0], r[1], r[2], r[3], pf[m][n][0], pf[m][n][1]);
      }
    }
}

}  // namespace paged_decode
}  // namespace upkernel
