// Global -> shared streaming. Every warp owns a ring of its own and fills it itself, so the main loop has no block
// barrier: a slow page or a late table entry stalls one warp, and the others keep HBM busy.
#pragma once
#include "schedule.cuh"
#include "traits.cuh"

namespace upkernel {
namespace paged_decode {

// A tile whose page entries have been requested but whose copies are not issued yet. Separating the two hides the
// latency of the block table behind one tile of work.
struct Fetch {
  int page;         // of this lane's token
  uint32_t offset;  // of this lane's token inside the page, 16-byte units, head included
  bool valid;       // warp-uniform
};

template <class C>
struct Loader {
  const Params& p;
  Extent e;
  int b, h, t;       // next tile, not yet normalised: t may lie past the end of the row
  int left;          // flat tiles from here to the end of the team's share
  int stride;        // warps in the team
  int lane;
  bool leader;       // first warp of the team
  uint64_t policy;
  const int32_t* table;

  __device__ __forceinline__ Loader(const Params& p_, const Share& s, int rank, int team, int lane_)
      : p(p_), b(s.b), h(s.h), t(s.t + rank), left(s.end - s.begin - rank), stride(team), lane(lane_),
        leader(rank == 0), policy(ptx::evict_first_policy()) {
    set_request(s.len);
  }

  __device__ __forceinline__ void set_request(int len) {
    e = extent_of<C>(p, len);
    table = p.block_table + (p.indptr ? int64_t(__ldg(p.indptr + b)) : int64_t(b) * p.table_stride);
  }

  __device__ __forceinline__ Fetch next() {
    Fetch f;
    f.valid = left > 0;
    f.page = 0;
    f.offset = 0;
    if (f.valid) {
      while (t >= e.count) {
        t -= e.count;
        if (++h == p.heads_kv) {
          h = 0;
          ++b;
          set_request(__ldg(p.seq_lens + b));
        }
        if (leader) prefetch_query();
      }
      // Tokens outside [lo, len) repeat the nearest valid one: every byte that lands in shared memory is finite cache
      // content that the caller vouches for, so a zero probability times it is zero. Nothing past a length is read.
      int tok = (e.first + t) * C::TOK + (lane & (C::TOK - 1));
      tok = max(min(tok, e.len - 1), e.lo);
      if (e.len > 0) f.page = __ldg(table + (tok >> p.page_shift));
      f.offset = uint32_t(tok & ((1 << p.page_shift) - 1)) * p.kv_tok + uint32_t(h) * p.kv_head;
      t += stride;
      left -= stride;
    }
    return f;
  }

  // The ring keeps megabytes queued at HBM, so a query that is first asked for when its row starts waits behind them
  // for microseconds, with all warps idle. The loader reaches a row long before the consumer does.
  __device__ __forceinline__ void prefetch_query() const {
    constexpr int LINES = C::D * 2 / 128;  // of one head; NT * 8 heads are at most 64 lines
#pragma unroll 1
    for (int i = lane; i < p.group * LINES; i += 32) {
      const Column c = column_of<C>(p, b, h, i / LINES);
      const char* q = static_cast<const char*>(p.q) + 2 * (c.token * p.q_stride_b + c.head * p.q_stride_h);
      ptx::prefetch_l2(q + (i % LINES) * 128);
    }
  }

  // Copies K and V of the tile into a ring slot; 2 * TOK * ROW_BYTES / 512 coalesced 16-byte copies a lane.
  __device__ __forceinline__ void issue(const Fetch& f, uint32_t slot) const {
    if (f.valid) {
      constexpr int ROWS = 32 / C::CHUNKS;  // rows that one warp-wide copy covers
      const uint32_t mine = uint32_t(f.page) * p.kv_page + f.offset;
      const int chunk = lane % C::CHUNKS;
      const char* k = static_cast<const char*>(p.k) + chunk * 16;
      const char* v = static_cast<const char*>(p.v) + chunk * 16;
#pragma unroll
      for (int i = 0; i < C::TOK / ROWS; ++i) {
        const int row = i * ROWS + lane / C::CHUNKS;
        const uint64_t off = uint64_t(__shfl_sync(kFull, mine, row)) * 16;
        const uint32_t dst = slot + row * C::ROW_BYTES + ((chunk ^ C::swizzle(row)) << 4);
        ptx::cp_async_16(dst, k + off, policy);
        ptx::cp_async_16(dst + C::TILE_BYTES, v + off, policy);
      }
    }
    ptx::cp_async_commit();  // empty groups keep the count uniform at the end of a share
  }
};

}  // namespace paged_decode
}  // namespace upkernel
