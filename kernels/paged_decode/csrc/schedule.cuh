// Who does what: an equal share of the KV tiles for every team, worked out on the device from the lengths.
//
// A row is one (request, KV head). Rows are laid end to end, tile by tile, in the order (request, head, tile). A team is
// a block, or half, a quarter or an eighth of its warps where there are several rows a block. Team i of W takes tiles
// [i*T/W, (i+1)*T/W): shares differ by at most one tile however ragged the lengths are, and the grid size never depends
// on them, so one CUDA graph serves all lengths.
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
__device__ __forceinline__ Extent extent_of(const Params& p, int len) {
  Extent e;
  e.len = max(len, 0);
  e.lo = p.window > 0 ? max(e.len - p.window, 0) : 0;
  e.first = e.lo / TOK;
  // An empty request still owns one (fully masked) tile, so that some team writes its zero output.
  e.count = max((e.len + TOK - 1) / TOK - e.first, 1);
  return e;
}

// Warps a team. With one row or less for a block the whole block works on it; with more, smaller teams work on several
// rows at once, because the end of a row (merging the warps, the next query) is a pause for the team.
__device__ __forceinline__ int team_warps(int rows, int grid, int warps) {
  int team = warps;
  while (team > 1 && rows > grid * (warps / team)) team /= 2;
  return team;
}

// Number of teams that get work. With equal lengths a multiple (or a divisor) of the row count lets every share end on
// a row boundary or cut each row into the same few pieces, so teams write outputs directly or merge little. It is taken
// when it leaves at most a tenth of the teams idle: HBM is saturated well before the last SMs join in.
__device__ __forceinline__ int worker_count(int rows, int teams, int total, int min_tiles) {
  int w;
  if (rows <= teams) {
    const int most = teams / rows;
    const int pieces = min(most, max(1, total / (rows * max(min_tiles, 1))));
    w = rows * pieces;
    if (pieces == most && w * 10 < teams * 9) w = teams;
  } else {
    const int per = (rows + teams - 1) / teams;
    w = (rows + per - 1) / per;
    if (w * 10 < teams * 9) w = teams;
  }
  return min(w, total);
}

struct Share {
  int workers, quot, rem;  // total = workers * quot + rem
  int begin, end;          // flat tiles of this team; empty if begin >= end
  int b, h, t;             // request, KV head and tile (within the row) of `begin`

  // floor(i * total / workers) without 64-bit arithmetic, whose division would be 200 instructions in a cold cache.
  __device__ __forceinline__ int begin_of(int i) const {
    return i * quot + int(unsigned(i) * unsigned(rem) / unsigned(workers));
  }
  // The team that owns flat tile x: an estimate that float rounding may put off by one, then put right.
  __device__ __forceinline__ int owner_of(int x) const {
    const float total = float(workers) * float(quot) + float(rem);
    int i = min(int(float(x) * (float(workers) / total)), workers - 1);
    while (begin_of(i) > x) --i;
    while (i + 1 < workers && begin_of(i + 1) <= x) ++i;
    return i;
  }
};

// Called by every warp on its own (no block barrier).
template <int TOK>
__device__ __forceinline__ Share make_share(const Params& p, int team, int teams, int lane) {
  constexpr int BATCH = 8;  // loads in flight: the lengths may come from HBM, a microsecond each if taken one by one
  int sum = 0, count0 = 0;
#pragma unroll 1
  for (int b0 = 0; b0 < p.batch; b0 += 32 * BATCH) {
    int len[BATCH];
#pragma unroll
    for (int u = 0; u < BATCH; ++u) {
      const int b = b0 + 32 * u + lane;
      len[u] = b < p.batch ? __ldg(p.seq_lens + b) : 0;
    }
#pragma unroll
    for (int u = 0; u < BATCH; ++u) {
      const int n = b0 + 32 * u + lane < p.batch ? extent_of<TOK>(p, len[u]).count : 0;
      if (u == 0 && b0 == 0) count0 = n;
      sum += n;
    }
  }
  const int total = __reduce_add_sync(kFull, sum) * p.heads_kv;
  Share s;
  s.workers = worker_count(p.batch * p.heads_kv, teams, total, p.min_tiles);
  s.quot = total / s.workers;
  s.rem = total - s.quot * s.workers;
  s.b = s.h = s.t = s.begin = s.end = 0;
  if (team >= s.workers) return s;
  s.begin = s.begin_of(team);
  s.end = s.begin_of(team + 1);
  // Find the request that holds tile `begin`: skip whole groups of 32 requests, then scan inside the group.
  int base = 0, n = count0 * p.heads_kv;
#pragma unroll 1
  for (int b0 = 0;;) {
    const int chunk = __reduce_add_sync(kFull, n);
    if (s.begin < base + chunk) {
      s.b = b0;
      break;
    }
    base += chunk;
    b0 += 32;
    n = b0 + lane < p.batch ? extent_of<TOK>(p, __ldg(p.seq_lens + b0 + lane)).count * p.heads_kv : 0;
  }
  int incl = n;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int up = __shfl_up_sync(kFull, incl, d);
    if (lane >= d) incl += up;
  }
  const int who = __ffs(__ballot_sync(kFull, s.begin < base + incl)) - 1;
  s.b += who;
  const int rest = s.begin - base - __shfl_sync(kFull, incl - n, who);
  const int per_head = __shfl_sync(kFull, n, who) / p.heads_kv;
  s.h = rest / per_head;
  s.t = rest - s.h * per_head;
  return s;
}

}  // namespace paged_decode
}  // namespace upkernel
