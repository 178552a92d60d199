// apache-tvm-ffi binding of one specialisation (see instance.cuh). Checks every argument, then launches on the
// framework's current stream. FP8 caches arrive as uint8, because DLPack exchanges them so everywhere.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "instance.cuh"

namespace upkernel {
namespace paged_decode {
namespace {

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

#define UPK_CHECK(cond) \
  if (!(cond)) TVM_FFI_THROW(ValueError) << "paged_decode: "

bool is(DLDataType t, uint8_t code, uint8_t bits) { return t.code == code && t.bits == bits && t.lanes == 1; }

uint32_t units(const char* what, int64_t elements, int64_t elem_bytes) {
  const int64_t bytes = elements * elem_bytes;
  UPK_CHECK(bytes >= 0 && bytes % 16 == 0 && bytes / 16 <= UINT32_MAX)
      << what << " of " << bytes << " bytes is not a multiple of 16 below 64 GiB";
  return uint32_t(bytes / 16);
}

int64_t scratch_bytes(int64_t group, int64_t grid) {
  return int64_t(scratch_layout(int(group), Instance::D, int(grid) * Instance::WARPS).bytes);
}

int64_t smem_bytes(int64_t group) { return Instance::smem_bytes(int(group)); }

// k, v: [pages, page, heads_kv, D] as logical order, any strides with a contiguous last dimension.
void run(TensorView q, TensorView k, TensorView v, TensorView table, Optional<TensorView> indptr, TensorView lens,
         TensorView out, Optional<TensorView> lse, TensorView scratch, Optional<TensorView> k_scale,
         Optional<TensorView> v_scale, Optional<TensorView> sinks, double k_scale_f, double v_scale_f, double sm_scale,
         double soft_cap, int64_t window, int64_t q_len, bool lse_base2, int64_t grid, int64_t min_tiles, bool dependent,
         Optional<TensorView> trace) {
  constexpr int KB = Instance::KV8 ? 1 : 2;
  constexpr uint8_t qcode = Instance::Q == DType::kBF16 ? kDLBfloat : kDLFloat;
  constexpr uint8_t kcode = Instance::KV8 ? kDLUInt : Instance::KV == DType::kBF16 ? kDLBfloat : kDLFloat;
  UPK_CHECK(is(q.dtype(), qcode, 16) && is(out.dtype(), qcode, 16)) << "q or out has the wrong dtype for this build";
  UPK_CHECK(is(k.dtype(), kcode, 8 * KB) && is(v.dtype(), kcode, 8 * KB)) << "cache has the wrong dtype for this build";
  UPK_CHECK(q.ndim() == 3 && out.ndim() == 3 && k.ndim() == 4 && v.ndim() == 4 && lens.ndim() == 1)
      << "expected q, out of 3, k, v of 4 and seq_lens of 1 dimensions";
  const int64_t batch = lens.size(0), heads_q = q.size(1), pages = k.size(0), page = k.size(1), heads_kv = k.size(2);
  UPK_CHECK(q.size(2) == Instance::D && k.size(3) == Instance::D) << "head_dim is " << q.size(2) << " and " << k.size(3)
                                                                  << ", this build has " << Instance::D;
  UPK_CHECK(heads_kv > 0 && heads_q % heads_kv == 0) << heads_q << " query heads over " << heads_kv << " KV heads";
  UPK_CHECK(q_len >= 1 && (q_len == 1 || Instance::MANY)) << "q_len is " << q_len << ", this build takes 1";
  const int64_t group = heads_q / heads_kv * q_len;
  UPK_CHECK(group <= 8 * Instance::NT) << group << " columns a KV head (query heads times q_len), this build takes "
                                       << 8 * Instance::NT;
  UPK_CHECK(page > 0 && (page & (page - 1)) == 0) << "page size " << page << " is not a power of two";
  for (int i = 0; i < 3; ++i)
    UPK_CHECK(out.size(i) == q.size(i)) << "out dimension " << i << " is " << out.size(i) << ", q has " << q.size(i);
  for (int i = 0; i < 4; ++i)
    UPK_CHECK(v.size(i) == k.size(i) && (v.stride(i) == k.stride(i) || k.size(i) == 1))
        << "k and v differ in dimension " << i << ": sizes " << k.size(i) << ", " << v.size(i) << ", strides "
        << k.stride(i) << ", " << v.stride(i);
  UPK_CHECK(q.stride(2) == 1 && out.stride(2) == 1 && k.stride(3) == 1) << "the last dimension must be contiguous";
  UPK_CHECK(is(lens.dtype(), kDLInt, 32) && is(table.dtype(), kDLInt, 32)) << "block_table and seq_lens must be int32";
  UPK_CHECK(q.size(0) == batch * q_len && (batch <= 1 || lens.stride(0) == 1))
      << "seq_lens has " << batch << " entries for q_len " << q_len << ", q has " << q.size(0) << " tokens";
  UPK_CHECK(reinterpret_cast<uintptr_t>(k.data_ptr()) % 16 == 0 && reinterpret_cast<uintptr_t>(v.data_ptr()) % 16 == 0)
      << "k and v must be aligned to 16 bytes";

  if (batch == 0) return;
  Params p = {};
  p.q = q.data_ptr();
  p.k = k.data_ptr();
  p.v = v.data_ptr();
  p.out = out.data_ptr();
  p.block_table = static_cast<const int32_t*>(table.data_ptr());
  p.seq_lens = static_cast<const int32_t*>(lens.data_ptr());
  if (indptr.has_value()) {
    UPK_CHECK(table.ndim() == 1 && is(indptr.value().dtype(), kDLInt, 32) && indptr.value().size(0) >= batch + 1)
        << "indptr must be int32 with batch + 1 entries, beside a flat page list";
    p.indptr = static_cast<const int32_t*>(indptr.value().data_ptr());
  } else {
    UPK_CHECK(table.ndim() == 2 && table.size(0) >= batch && (table.stride(1) == 1 || table.size(1) == 1))
        << "block_table must be [batch, pages] with contiguous rows";
    p.table_stride = int(table.stride(0)), p.table_width = int(table.size(1));
  }
  if (lse.has_value()) {
    UPK_CHECK(is(lse.value().dtype(), kDLFloat, 32) && lse.value().numel() == batch * q_len * heads_q)
        << "lse must be float32 [batch * q_len, heads]";
    p.lse = static_cast<float*>(lse.value().data_ptr());
  }
  auto scale = [&](const char* name, Optional<TensorView>& s) -> const float* {
    if (!s.has_value()) return nullptr;
    const int64_t n = s.value().numel();
    UPK_CHECK(is(s.value().dtype(), kDLFloat, 32) && (n == 1 || n == heads_kv) && s.value().device().device_type == kDLCUDA)
        << name << " must be float32 on the GPU with 1 or " << heads_kv << " entries, not " << n;
    if (n == heads_kv && n > 1) p.scale_stride = 1;
    return static_cast<const float*>(s.value().data_ptr());
  };
  p.k_scale_ptr = scale("k_scale", k_scale);
  p.v_scale_ptr = scale("v_scale", v_scale);
  if (p.k_scale_ptr && p.v_scale_ptr)
    UPK_CHECK(k_scale.value().numel() == v_scale.value().numel()) << "k_scale and v_scale must have the same size";
  if (sinks.has_value()) {
    UPK_CHECK(is(sinks.value().dtype(), kDLFloat, 32) && sinks.value().numel() == heads_q) << "sinks must be float32 [heads]";
    p.sinks = static_cast<const float*>(sinks.value().data_ptr());
  }
  p.q_stride_b = q.stride(0), p.q_stride_h = q.stride(1);
  p.o_stride_b = out.stride(0), p.o_stride_h = out.stride(1);
  UPK_CHECK(p.q_stride_b % 4 == 0 && p.q_stride_h % 4 == 0 && p.o_stride_b % 4 == 0 && p.o_stride_h % 4 == 0 &&
            reinterpret_cast<uintptr_t>(p.q) % 8 == 0 && reinterpret_cast<uintptr_t>(p.out) % 8 == 0)
      << "q and out rows must be aligned to 8 bytes";
  p.kv_page = pages > 1 ? units("page stride", k.stride(0), KB) : 0;
  p.kv_tok = page > 1 ? units("token stride", k.stride(1), KB) : 0;
  p.kv_head = heads_kv > 1 ? units("head stride", k.stride(2), KB) : 0;
  units("cache extent", (pages - 1) * k.stride(0) + (page - 1) * k.stride(1) + (heads_kv - 1) * k.stride(2), KB);
  p.batch = int(batch), p.heads_kv = int(heads_kv), p.group = int(group);
  p.q_len = int(q_len), p.heads = int(heads_q / heads_kv);
  while ((int64_t(1) << p.page_shift) < page) ++p.page_shift;
  p.window = int(window);
  p.min_tiles = int(min_tiles);
  p.plan = make_plan(int(batch), int(heads_kv), int(grid), Instance::WARPS);
  p.k_scale = float(k_scale_f), p.v_scale = float(v_scale_f);
  p.sm_scale = float(sm_scale), p.soft_cap = float(soft_cap);
  p.lse_mult = lse_base2 ? 1.f : 0.69314718055994531f;
  const ScratchLayout lay = scratch_layout(p.group, Instance::D, int(grid) * Instance::WARPS);
  const int64_t have = scratch.numel() * scratch.dtype().bits / 8;
  UPK_CHECK(have >= int64_t(lay.bytes)) << "scratch has " << have << " bytes, needs " << lay.bytes;
  char* base = static_cast<char*>(scratch.data_ptr());
  p.part_ml = reinterpret_cast<float2*>(base + lay.part_ml);
  p.part_o = reinterpret_cast<float*>(base + lay.part_o);
  if (trace.has_value()) p.trace = static_cast<long long*>(trace.value().data_ptr());

  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(q.device().device_type, q.device().device_id));
  const cudaError_t err = launch<Instance, kBlocksPerSM>(p, int(grid), dependent, stream);
  if (err != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "paged_decode: " << cudaGetErrorString(err);
}

}  // namespace
}  // namespace paged_decode
}  // namespace upkernel

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, upkernel::paged_decode::run);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scratch_bytes, upkernel::paged_decode::scratch_bytes);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(smem_bytes, upkernel::paged_decode::smem_bytes);
