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
  UPK_MARK(0);
  ptx::grid_launch_dependents();
  ptx::prefetch_l2(p.seq_lens);
  ptx::grid_dependency_wait();
  const int first_len = lane < p.batch ? __ldg(p.seq_lens + lane) : 0;
  // Parameters are cold as well, and a first use waits for its line of the constant bank. Touching the lines here, while
  // the lengths are on the way, takes those waits out of the chain that follows.
  asm volatile("" ::"l"(p.q), "l"(p.part_o), "l"(p.o_stride_b), "r"(p.group), "r"(p.plan.workers), "f"(p.lse_mult));
  UPK_MARK(8);

  Team team;
  team.warps = 1 << p.plan.team_shift;
  team.id = (blockIdx.x * C::WARPS + warp) >> p.plan.team_shift;
  team.rank = warp & (team.warps - 1);
  team.first = warp - team.rank;
  const Share share = make_share<C>(p, team.id, lane, first_len);
  if (share.begin >= share.end) return;
  UPK_MARK(1);

  const uint32_t ring = ptx::smem_addr(smem) + warp * C::STAGES * C::STAGE_BYTES;
  EpilogueSmem es;
  es.ml = reinterpret_cast<float*>(smem + C::RING_BYTES);
  es.o = es.ml + C::ML_FLOATS;

  // Fill the ring. All reads of query and table go out before the first copy: a load that is queued behind the copies of
  // eight warps returns thousands of cycles later.
  Loader<C> loader(p, share, team.rank, team.warps, lane);
  Query<C> query = {};
  Fetch ahead;
  {
    Fetch now[C::STAGES];
#pragma unroll
    for (int i = 0; i < C::STAGES; ++i) now[i] = loader.next();
    if (now[0].valid) load_query<C>(query, p, share.b, share.h, lane);
    ahead = loader.next();
#pragma unroll
    for (int i = 0; i < C::STAGES; ++i) loader.issue(now[i], ring + i * C::STAGE_BYTES);
  }
  UPK_MARK(2);

  int f = share.begin + team.rank;  // this warp's next tile
  uint32_t slot = ring;
  Row row{share.b, share.h, share.begin - share.t, 0};
  Extent e = extent_of<C>(p, share.len);
  int merge_first = -1;  // first team of the row that this team must merge at the end
#pragma unroll 1
  for (bool again = false;; again = true) {
    row.end = row.begin + e.count;
    const int stop = min(row.end, share.end);
    RowState<C> st;
    start_row<C>(st, query, p, lane);
    UPK_MARK(3);
#pragma unroll 1
    for (; f < stop; f += team.warps) {
      ptx::cp_async_wait<C::STAGES - 1>();
      __syncwarp();  // the copies of the other lanes become visible
#ifdef UPK_TRACE
      if (f == share.begin) UPK_MARK(4);
#endif
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
    UPK_MARK(5);
    const Row done = row;
    const bool more = row.end < share.end;
    if (more) {
      row.begin = row.end;
      if (++row.h == p.heads_kv) {
        row.h = 0;
        ++row.b;
        e = extent_of<C>(p, __ldg(p.seq_lens + row.b));
      }
      load_query<C>(query, p, row.b, row.h, lane);  // arrives while the row before is being finished
    }
    finish_row<C>(st, p, share, done, es, again, team, lane);
    UPK_MARK(6);
    // Only the first row of a share can have begun in an earlier team.
    if (done.begin < share.begin && done.end <= share.end) merge_first = share.owner_of(done.begin);
    if (!more) break;
  }
  if (merge_first >= 0) merge_parts<C>(p, team, lane, share.b, share.h, merge_first);
  UPK_MARK(7);
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
