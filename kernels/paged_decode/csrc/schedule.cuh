// Who does what: an equal share of the KV tiles for every block, worked out on the device from the lengths.
//
// A row is one (request, KV head). Rows are laid end to end, tile by tile, in the order (request, head, tile). Block i
// of W takes tiles [i*T/W, (i+1)*T/W): shares differ by at most one tile however ragged the lengths are, and the grid
// size never depends on them, so one CUDA graph serves all lengths.
#pragma once
#include <cstdint>
#include "params.cuh"

namespace upkernel {
namespace paged_decode {

constexpr unsigned kFull = 0xffffffffu;

// The tile range of one request: tiles [first, first + count) of `TOK` tokens hold every token in [lo, len).
struct Extent {
  int len, lo, first, count;
};

template <int TOK>
__device__ __forceinline__ Extent extent_of(const Params& p, int b) {
  Extent e;
  e.len = b < p.batch ? max(__ldg(p.seq_lens + b), 0) : 0;
  e.lo = p.window > 0 ? max(e.len - p.window, 0) : 0;
  e.first = e.lo / TOK;
  // An empty request still owns one (fully masked) tile, so that some block writes its zero output.
  e.count = max((e.len + TOK - 1) / TOK - e.first, 1);
  return e;
}

// floor(a * b / c). The 64-bit division costs a few hundred cycles on the critical path of the launch, the 32-bit
// one about 30, so take it whenever the product fits.
__device__ __forceinline__ int muldiv(int a, int b, int c) {
  uint64_t x = uint64_t(unsigned(a)) * unsigned(b);
  return (x >> 32) == 0 ? int(unsigned(x) / unsigned(c)) : int(x / unsigned(c));
}

// Number of blocks that get work. With equal lengths a multiple (or a divisor) of the row count lets every share end
// on a row boundary or cut each row into the same few pieces, so blocks write outputs directly or merge little. It is
// taken when it leaves at most a tenth of the blocks idle: HBM is saturated well before the last SMs join in.
__device__ __forceinline__ int worker_count(int rows, int grid, int total, int min_tiles) {
  int w;
  if (rows <= grid) {
    int pieces = min(grid / rows, max(1, total / (rows * max(min_tiles, 1))));
    w = rows * pieces;
    if (pieces == grid / rows && w * 10 < grid * 9) w = grid;
  } else {
    int per = (rows + grid - 1) / grid;
    w = (rows + per - 1) / per;
    if (w * 10 < grid * 9) w = grid;
  }
  return min(w, total);
}

struct Share {
  int total, workers;
  int begin, end;     // flat tiles of this block; empty if begin >= end
  int b, h, t;        // request, KV head and tile (within the row) of `begin`
};

// Called by every warp on its own (no block barrier): B/32 coalesced loads a pass.
template <int TOK>
__device__ __forceinline__ Share make_share(const Params& p, int block, int grid, int lane) {
  int sum = 0;
  for (int b0 = 0; b0 < p.batch; b0 += 32)
    sum += b0 + lane < p.batch ? extent_of<TOK>(p, b0 + lane).count : 0;
  Share s;
  s.total = __reduce_add_sync(kFull, sum) * p.heads_kv;
  s.workers = worker_count(p.batch * p.heads_kv, grid, s.total, p.min_tiles);
  s.b = s.h = s.t = 0;
  s.begin = s.end = 0;
  if (block >= s.workers) return s;
  s.begin = muldiv(block, s.total, s.workers);
  s.end = muldiv(block + 1, s.total, s.workers);
  // Find the request that holds tile `begin`: skip whole groups of 32 requests, then scan inside the group.
  int base = 0;
  for (int b0 = 0;; b0 += 32) {
    int n = b0 + lane < p.batch ? extent_of<TOK>(p, b0 + lane).count * p.heads_kv : 0;
    int chunk = __reduce_add_sync(kFull, n);
    if (s.begin >= base + chunk) {
      base += chunk;
      continue;
    }
    int incl = n;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      int up = __shfl_up_sync(kFull, incl, d);
      if (lane >= d) incl += up;
    }
    unsigned after = __ballot_sync(kFull, s.begin < base + incl);
    int who = __ffs(after) - 1;
    s.b = b0 + who;
    int rest = s.begin - base - __shfl_sync(kFull, incl - n, who);
    int per_head = __shfl_sync(kFull, n, who) / p.heads_kv;
    s.h = rest / per_head;
    s.t = rest - s.h * per_head;
    return s;
  }
}

// Which block owns flat tile x. Inverse of begin = floor(i * T / W).
__device__ __forceinline__ int owner_of(int x, int total, int workers) {
  return int((uint64_t(unsigned(x) + 1u) * unsigned(workers) - 1) / unsigned(total));
}

}  // namespace paged_decode
}  // namespace upkernel
