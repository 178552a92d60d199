// The ceiling: a kernel that only loads and adds. A decode kernel that reads the same bytes cannot be faster than this,
// launch included, so results are given as a share of it.
#include <cuda_runtime.h>
#include <cstdint>

namespace {
template <int UNROLL>
__global__ void pure_read(const uint4* __restrict__ x, int64_t n, unsigned* out) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  unsigned acc = 0;
  for (; i + (UNROLL - 1) * step < n; i += UNROLL * step) {
    uint4 v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) v[u] = __ldcs(x + i + u * step);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) acc += v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  for (; i < n; i += step) {
    uint4 v = __ldcs(x + i);
    acc += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (acc == 0x9e3779b9u) *out = acc;  // keeps the loads alive; practically never taken
}
}  // namespace

// bytes is a multiple of 16. unroll: 4, 8 or 16. Returns the CUDA error code.
extern "C" int upk_pure_read(const void* x, int64_t bytes, void* out, int blocks, int threads, int unroll, void* stream) {
  auto* p = static_cast<const uint4*>(x);
  auto* o = static_cast<unsigned*>(out);
  auto s = static_cast<cudaStream_t>(stream);
  const int64_t n = bytes / 16;
  if (unroll == 4) pure_read<4><<<blocks, threads, 0, s>>>(p, n, o);
  else if (unroll == 8) pure_read<8><<<blocks, threads, 0, s>>>(p, n, o);
  else pure_read<16><<<blocks, threads, 0, s>>>(p, n, o);
  return cudaGetLastError();
}
