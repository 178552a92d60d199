// Compile-time shape of one kernel, and the two mma data paths (16-bit KV, 8-bit KV) behind one interface.
#pragma once
#include <type_traits>
#include "params.cuh"
#include "ptx.cuh"

namespace upkernel {
namespace paged_decode {

// Q: dtype of queries and output. KV: dtype of the cache. D: head_dim. NT: query heads a KV head / 8, rounded up.
// TOK: tokens in a tile (16 or 32). Each of WARPS warps streams its own tiles through a ring of STAGES of them.
// MANY: several query tokens a request; a constant, because telling columns apart costs divisions that one query can spare.
template <DType Q_, DType KV_, int D_, int NT_, int WARPS_, int TOK_, int STAGES_, bool MANY_>
struct Config {
  static constexpr DType Q = Q_, KV = KV_;
  static constexpr int D = D_, NT = NT_, WARPS = WARPS_, TOK = TOK_, STAGES = STAGES_;
  static constexpr bool MANY = MANY_;
  static constexpr int THREADS = WARPS * 32;
  static constexpr bool KV8 = KV == DType::kE4M3 || KV == DType::kE5M2;
  static constexpr int ROW_BYTES = D * (KV8 ? 1 : 2);
  static constexpr int CHUNKS = ROW_BYTES / 16;   // 16-byte chunks in a row
  static constexpr int TILE_BYTES = TOK * ROW_BYTES;
  static constexpr int STAGE_BYTES = 2 * TILE_BYTES;
  static constexpr int RING_BYTES = WARPS * STAGES * STAGE_BYTES;
  static constexpr int KSTEPS = D / 16;           // k16 steps of Q*K
  static constexpr int MTILES = D / 16;           // m16 tiles of V^T
  static constexpr int TM = TOK / 16;
  static constexpr int RED_PITCH = D + 4;         // floats; +4 makes the C-fragment stores free of bank conflicts
  static constexpr int ML_FLOATS = WARPS * NT * 8 * 2;  // (warp, head, m or l)

  using QType = std::conditional_t<Q == DType::kBF16, ptx::BF16, ptx::F16>;
  // fp8 is widened to f16 in registers: exact for both formats, and one instruction for two values.
  using MmaType = std::conditional_t<KV == DType::kBF16, ptx::BF16, ptx::F16>;
  // bf16 reaches 1e38 and f16 only 65504, so a bf16 query that meets f16 operands is scaled by a power of two.
  static constexpr bool RESCALE_Q = Q == DType::kBF16 && KV != DType::kBF16;

  static_assert(Q == DType::kBF16 || Q == DType::kF16, "queries are 16-bit");
  static_assert(!(Q == DType::kF16 && KV == DType::kBF16), "f16 queries cannot meet a bf16 cache");
  static_assert(D == 64 || D == 128 || D == 256, "head_dim: rows of a power of two of 16-byte chunks");
  static_assert(WARPS == 1 || WARPS == 2 || WARPS == 4 || WARPS == 8, "teams are powers of two, one lane group a warp");
  static_assert(TOK == 16 || TOK == 32, "tile");
  static_assert(CHUNKS <= 32, "a row is at most one 512-byte access of a warp");

  static constexpr int red_bytes(int group) { return WARPS * group * RED_PITCH * int(sizeof(float)); }
  static constexpr int smem_bytes(int group) {
    return RING_BYTES + ML_FLOATS * int(sizeof(float)) + red_bytes(group);
  }

  // XOR swizzle of the chunks of a row, so that the eight rows that one ldmatrix phase reads lie in different banks.
  static __device__ __forceinline__ int swizzle(int row) {
    return ROW_BYTES >= 128 ? (row & 7) : ((row >> 1) & 3);
  }

  // head_dim index of accumulator register pair `half` (0: c0,c1; 1: c2,c3) of m-tile j. For 8-bit caches a transposed
  // ldmatrix moves two dims at once, so neighbouring dims land in rows g and g + 8 of the same m-tile.
  static __device__ __forceinline__ int out_dim(int j, int half, int g) {
    return KV8 ? 16 * j + 2 * g + half : 16 * j + 8 * half + g;
  }
};

template <class C>
__device__ __forceinline__ uint32_t widen(uint16_t two) {
  if constexpr (C::KV == DType::kE4M3) return ptx::e4m3x2_to_f16x2(two);
  // e5m2 is the upper half of an f16.
  return __byte_perm(uint32_t(two), 0u, 0x1404);
}

}  // namespace paged_decode
}  // namespace upkernel
