// Paged decode attention: the kernel and its launcher.
//
// Source of the method: online softmax (Milakov and Gimelshein, 2018), split KV (Flash-Decoding, Dao et al., 2023) and
// equal flat shares with an in-kernel merge (Stream-K, Osama et al., 2023, applied to attention).
#pragma once
#include <cuda_runtime.h>
#include "epilogue.cuh"
#include "loader.cuh"

namespace upkernel {
namespace paged_decode {

template <class C, int BLOCKS_PER_SM>
__global__ void __launch_bounds__(C::THREADS, BLOCKS_PER_SM) paged_decode_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char smem[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();

  const Share share = make_share<C::TOK>(p, blockIdx.x, gridDim.x, lane);
  if (share.begin >= share.end) return;

  const uint32_t ring = ptx::smem_addr(smem) + warp * C::STAGES * C::STAGE_BYTES;
  EpilogueSmem es;
  es.ml = reinterpret_cast<float*>(smem + C::RING_BYTES);
  es.o = es.ml + C::ML_FLOATS;
  es.flag = reinterpret_cast<int*>(es.o + C::WARPS * p.group * C::RED_PITCH);

  // Fill the ring. All table reads go out before the first copy needs one.
  Loader<C> loader(p, share, warp, lane);
  Fetch ahead;
  {
    Fetch f[C::STAGES];
#pragma unroll
    for (int i = 0; i < C::STAGES; ++i) f[i] = loader.next();
    ahead = loader.next();
#pragma unroll
    for (int i = 0; i < C::STAGES; ++i) loader.issue(f[i], ring + i * C::STAGE_BYTES);
  }

  int f = share.begin + warp;  // this warp's next tile
  uint32_t slot = ring;
  Row row{share.b, share.h, share.begin - share.t, 0};
  Extent e = extent_of<C::TOK>(p, row.b);
  for (int parity = 0;; parity ^= 1) {
    row.end = row.begin + e.count;
    const int stop = min(row.end, share.end);
    RowState<C> st;
    load_query<C>(st, p, row.b, row.h, lane);
    for (; f < stop; f += C::WARPS) {
      ptx::cp_async_wait<C::STAGES - 1>();
      __syncwarp();  // the copies of the other lanes become visible
      float s[C::TM][C::NT][4];
      scores<C>(s, st, slot, lane);
      to_logits<C>(s, st, p, (e.first + f - row.begin) * C::TOK, e.lo, e.len, lane);
      uint32_t pf[C::TM][C::NT][2];
      softmax_step<C>(pf, s, st);
      accumulate<C>(st, pf, slot, lane);
      __syncwarp();  // every lane is done with the slot
      loader.issue(ahead, slot);
      ahead = loader.next();
      slot += C::STAGE_BYTES;
      if (slot == ring + C::STAGES * C::STAGE_BYTES) slot = ring;
    }
    finish_row<C>(st, p, share, row, es, parity, blockIdx.x, warp, lane);
    if (row.end >= share.end) break;
    row.begin = row.end;
    if (++row.h == p.heads_kv) {
      row.h = 0;
      ++row.b;
      e = extent_of<C::TOK>(p, row.b);
    }
  }
}

// Launches on `stream`. `grid` is a host-side constant (SM count times blocks an SM). Returns the CUDA error, if any.
template <class C, int BLOCKS_PER_SM>
cudaError_t launch(const Params& p, int grid, bool dependent, cudaStream_t stream) {
  auto* kernel = paged_decode_kernel<C, BLOCKS_PER_SM>;
  const int smem = C::smem_bytes(p.group);
  // Set on every call: the attribute belongs to the current device, and the call takes well under a microsecond.
  cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
  if (err != cudaSuccess) return err;
  cudaLaunchConfig_t cfg = {};
  cfg.gridDim = dim3(grid);
  cfg.blockDim = dim3(C::THREADS);
  cfg.dynamicSmemBytes = smem;
  cfg.stream = stream;
  cudaLaunchAttribute attr[1];
  attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attr[0].val.programmaticStreamSerializationAllowed = 1;
  cfg.attrs = attr;
  cfg.numAttrs = dependent ? 1 : 0;
  return cudaLaunchKernelEx(&cfg, kernel, p);
}

}  // namespace paged_decode
}  // namespace upkernel
