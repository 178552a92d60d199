// One shared library holds one specialisation, chosen by macros, so that a first call compiles one kernel, not dozens.
//
// UPK_Q, UPK_KV: DType numbers. UPK_D: head_dim. UPK_NT: ceil(columns / 8). UPK_MANY: 1 for several query tokens.
// UPK_WARPS, UPK_TOK, UPK_STAGES, UPK_BLOCKS_PER_SM: tuning; the defaults are the measured choice for the H200.
// UPK_SMEM: shared memory of one SM in bytes, of which every resident block costs 1 KB more than it asks for.
#pragma once
#include "kernel.cuh"

#ifndef UPK_Q
#define UPK_Q 1
#endif
#ifndef UPK_KV
#define UPK_KV 1
#endif
#ifndef UPK_D
#define UPK_D 128
#endif
#ifndef UPK_NT
#define UPK_NT 1
#endif
#ifndef UPK_MANY
#define UPK_MANY 0
#endif
#define UPK_ROW_BYTES (UPK_D * (UPK_KV >= 2 ? 1 : 2))
#ifndef UPK_WARPS
#define UPK_WARPS (UPK_ROW_BYTES > 256 ? 4 : 8)
#endif
#ifndef UPK_TOK
#define UPK_TOK (UPK_ROW_BYTES > 128 ? 16 : 32)
#endif
#ifndef UPK_BLOCKS_PER_SM
#define UPK_BLOCKS_PER_SM 1
#endif
#ifndef UPK_SMEM
#define UPK_SMEM 233472
#endif
#ifndef UPK_STAGES
// 128 KB in flight an SM, where shared memory has that much. Twice what bandwidth times latency asks for; more only makes
// the queue at HBM longer, in which tables, queries and instructions wait as well.
#define UPK_STAGES upkernel::paged_decode::default_stages()
#endif

namespace upkernel {
namespace paged_decode {

constexpr int default_stages() {
  using One = Config<static_cast<DType>(UPK_Q), static_cast<DType>(UPK_KV), UPK_D, UPK_NT, UPK_WARPS, UPK_TOK, 1, UPK_MANY>;
  const int room = UPK_SMEM / UPK_BLOCKS_PER_SM - 1024 - (One::smem_bytes(8 * UPK_NT) - One::RING_BYTES);
  const int fit = room / One::RING_BYTES, want = 131072 / UPK_BLOCKS_PER_SM / One::RING_BYTES;
  return fit < want || want < 2 ? fit : want;
}
using Instance = Config<static_cast<DType>(UPK_Q), static_cast<DType>(UPK_KV), UPK_D, UPK_NT, UPK_WARPS, UPK_TOK,
                        UPK_STAGES, UPK_MANY>;
static_assert(Instance::STAGES >= 2, "no room for two stages in shared memory");
constexpr int kBlocksPerSM = UPK_BLOCKS_PER_SM;
template __global__ void paged_decode_kernel<Instance, kBlocksPerSM>(const __grid_constant__ Params);
}  // namespace paged_decode
}  // namespace upkernel
