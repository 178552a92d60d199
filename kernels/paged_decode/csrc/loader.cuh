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
  int b, h, t;       // next tile
  int left;          // flat tiles from here to the end of the block's share
  int lane;
  const int32_t* table;

  __device__ __forceinline__ Loader(const Params& p_, const Share& s, int warp, int lane_)
      : p(p_), b(s.b), h(s.h), t(s.t), left(s.end - s.begin), lane(lane_) {
    set_request();
    skip(warp);
  }

  __device__ __forceinline__ void set_request() {
    e = extent_of<C::TOK>(p, b);
    table = p.block_table + (p.indptr ? int64_t(b < p.batch ? __ldg(p.indptr + b) : 0) : int64_t(b) * p.table_stride);
  }

  __device__ __forceinline__ void skip(int n) {
    left -= n;
    t += n;
    while (left > 0 && t >= e.count) {
      t -= e.count;
      if (++h == p.heads_kv) {
        h = 0;
        ++b;
        set_request();
      }
    }
  }

  __device__ __forceinline__ Fetch next() {
    Fetch f;
    f.valid = left > 0;
    f.page = 0;
    f.offset = 0;
    if (f.valid) {
      // Tokens outside [lo, len) repeat the nearest valid one: every byte that lands in shared memory is finite cache
      // content that the caller vouches for, so a zero probability times it is zero. Nothing past a length is read.
      int tok = (e.first + t) * C::TOK + (lane & (C::TOK - 1));
      tok = max(min(tok, e.len - 1), e.lo);
      if (e.len > 0) f.page = __ldg(table + (tok >> p.page_shift));
      f.offset = uint32_t(tok & ((1 << p.page_shift) - 1)) * p.kv_tok + uint32_t(h) * p.kv_head;
      skip(C::WARPS);
    }
    return f;
  }

  // Copies K and V of the tile into a ring slot; 2 * TOK * ROW_BYTES / 512 coalesced 16-byte copies a lane.
  __device__ __forceinline__ void issue(const Fetch& f, uint32_t slot) const {
    if (f.valid) {
      constexpr int ROWS = 32 / C::CHUNKS;  // rows that one warp-wide copy covers
      uint32_t mine = uint32_t(f.page) * p.kv_page + f.offset;
      int chunk = lane % C::CHUNKS;
      const char* k = static_cast<const char*>(p.k) + chunk * 16;
      const char* v = static_cast<const char*>(p.v) + chunk * 16;
#pragma unroll
      for (int i = 0; i < C::TOK / ROWS; ++i) {
        int row = i * ROWS + lane / C::CHUNKS;
        uint64_t off = uint64_t(__shfl_sync(kFull, mine, row)) * 16;
        uint32_t dst = slot + row * C::ROW_BYTES + ((chunk ^ C::swizzle(row)) << 4);
        ptx::cp_async_16(dst, k + off);
        ptx::cp_async_16(dst + C::TILE_BYTES, v + off);
      }
    }
    ptx::cp_async_commit();  // empty groups keep the count uniform at the end of a share
  }
};

}  // namespace paged_decode
}  // namespace upkernel
