// Who does what: an equal share of the KV tiles for every team, worked out on the device from the lengths.
//
// A row is one (request, KV head). Rows are laid end to end, tile by tile, in the order (request, head, tile). A team is
// a block, or half, a quarter or an eighth of its warps where there are several rows a block. Team i of W takes tiles
// [i*T/W, (i+1)*T/W): shares differ by at most one tile however ragged the lengths are, and the grid size never depends
// on them, so one CUDA graph serves all lengths.
#pragma once
#include <cstdint>
#include "params.cuh"
#include "ptx.cuh"

namespace upkernel {
namespace paged_decode {

constexpr unsigned kFull = 0xffffffffu;

// The tile range of one request: tiles [first, first + count) of `TOK` tokens hold every token in [lo, len).
struct Extent {
  int len, lo, first, count;
};

template <class C>
__device__ __forceinline__ Extent extent_of(const Params& p, int len) {
  constexpr int TOK = C::TOK;
  Extent e;
  e.len = max(len, 0);
  // The first of several queries reaches back furthest.
  const int older = C::MANY ? p.q_len - 1 : 0;
  e.lo = p.window > 0 ? max(e.len - older - p.window, 0) : 0;
  e.first = e.lo / TOK;
  // An empty request still owns one (fully masked) tile, so that some team writes its zero output.
  e.count = max((e.len + TOK - 1) / TOK - e.first, 1);
  return e;
}

// floor(x / d) for x >= 0, from two float estimates and a last correction: 15 instructions in a short chain, where the
// compiler's integer division has 30 and calls for the quotient's reciprocal each time. Half a dozen of them stand between
// the lengths and the first byte of KV.
__device__ __forceinline__ float reciprocal_of(int d) { return ptx::rcp_approx(float(d)); }
__device__ __forceinline__ int floor_div(int x, int d, float reciprocal) {
  int q = int(float(x) * reciprocal);
  q += int(floorf(float(x - q * d) * reciprocal));
  const int r = x - q * d;
  return q + (r >= d) - (r < 0);
}

struct Share {
  int workers, quot, rem;  // total = workers * quot + rem
  float reciprocal;        // of workers
  int begin, end;          // flat tiles of this team; empty if begin >= end
  int b, h, t, len;        // request, KV head and tile (within the row) of `begin`; length of the request

  // floor(i * total / workers) in 32 bits: i and rem are at most a few thousand.
  __device__ __forceinline__ int begin_of(int i) const {
    return i * quot + floor_div(i * rem, workers, reciprocal);
  }
  // The team that owns flat tile x: an estimate that float rounding may put off by one, then put right.
  __device__ __forceinline__ int owner_of(int x) const {
    const float total = float(workers) * float(quot) + float(rem);
    const int i = min(int(float(x) * float(workers) * ptx::rcp_approx(total)), workers - 1);
    return i - (begin_of(i) > x) + (begin_of(i + 1) <= x);
  }
};

// Called by every warp on its own (no block barrier). `len` is the length of request `lane`, 0 past the batch.
template <class C>
__device__ __forceinline__ Share make_share(const Params& p, int team, int lane, int len) {
  constexpr int BATCH = 8;  // loads in flight: the lengths may come from HBM, a microsecond each if taken one by one
  int count = lane < p.batch ? extent_of<C>(p, len).count : 0;
  int sum = count;
#pragma unroll 1
  for (int b0 = 32; b0 < p.batch; b0 += 32 * BATCH) {
    int more[BATCH];
#pragma unroll
    for (int u = 0; u < BATCH; ++u) {
      const int b = b0 + 32 * u + lane;
      more[u] = b < p.batch ? __ldg(p.seq_lens + b) : 0;
    }
#pragma unroll
    for (int u = 0; u < BATCH; ++u)
      if (b0 + 32 * u + lane < p.batch) sum += extent_of<C>(p, more[u]).count;
  }
  const int total = __reduce_add_sync(kFull, sum) * p.heads_kv;
  UPK_MARK(9);
  Share s;
  s.workers = p.plan.workers;
  if (p.plan.pieces > 1) {
    int pieces = p.plan.pieces;
    while (pieces > 1 && total < p.plan.rows * pieces * p.min_tiles) s.workers = p.plan.rows * (pieces /= 2);
  }
  s.workers = min(s.workers, total);
  s.reciprocal = reciprocal_of(s.workers);
  s.quot = floor_div(total, s.workers, s.reciprocal);
  s.rem = total - s.quot * s.workers;
  s.b = s.h = s.t = s.begin = s.end = s.len = 0;
  if (team >= s.workers) return s;
  s.begin = s.begin_of(team);
  s.end = s.begin_of(team + 1);
  // Find the request that holds tile `begin`: skip whole groups of 32 requests, then scan inside the group.
  int base = 0;
#pragma unroll 1
  for (;;) {
    const int chunk = __reduce_add_sync(kFull, count) * p.heads_kv;
    if (s.begin < base + chunk) break;
    base += chunk;
    s.b += 32;
    len = s.b + lane < p.batch ? __ldg(p.seq_lens + s.b + lane) : 0;
    count = s.b + lane < p.batch ? extent_of<C>(p, len).count : 0;
  }
  int incl = count;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int up = __shfl_up_sync(kFull, incl, d);
    if (lane >= d) incl += up;
  }
  const int who = __ffs(__ballot_sync(kFull, s.begin < base + incl * p.heads_kv)) - 1;
  s.b += who;
  s.len = __shfl_sync(kFull, len, who);
  const int per_head = __shfl_sync(kFull, count, who);
  const int rest = s.begin - base - (__shfl_sync(kFull, incl, who) - per_head) * p.heads_kv;
  s.h = floor_div(rest, per_head, reciprocal_of(per_head));
  s.t = rest - s.h * per_head;
  return s;
}

}  // namespace paged_decode
}  // namespace upkernel
