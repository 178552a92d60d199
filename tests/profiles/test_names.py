"""Names of the same kernel in two builds become equal, names of different kernels stay apart."""

import pytest

from harness.profiles.categories import categorise
from harness.profiles.model import Category
from harness.profiles.names import normalise

ATEN_COPY = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)"
    "::[lambda() (instance 3)]::operator ()() const::[lambda() (instance 7)]::operator ()() const::[lambda() (instance 1)], "
    "std::array<char *, (unsigned long)2>>(int)"
)
ATEN_MUL = (
    "void at::native::vectorized_elementwise_kernel<(int)8, at::native::AUnaryFunctor<c10::BFloat16, c10::BFloat16, "
    "c10::BFloat16, at::native::binary_internal::MulFunctor<float>>, std::array<char *, (unsigned long)2>>(int, T2, T3)"
)


@pytest.mark.parametrize(
    ("full", "expected"),
    [
        ("_fwd_kernel_stage1", "_fwd_kernel_stage1"),
        # Triton's signature suffix, of the versions that append one.
        ("_fwd_grouped_kernel_stage1_0d1d2d3d4d5d6de7de8c", "_fwd_grouped_kernel_stage1"),
        ("kernel_unified_attention_2d", "kernel_unified_attention_2d"),
        ("triton_poi_fused_add_mul_3", "triton_poi_fused_add_mul"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_12", "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt"),
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT"),
        (
            "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(const T1 *, int)",
            "vllm::reshape_and_cache_flash_kernel",
        ),
        (
            "void <unnamed>::softmax_warp_forward<float, float, (int)11>(T2 *, const T1 *)",
            "softmax_warp_forward",
        ),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>(float*)", "at::native::cunn_SoftMaxForward"),
        (ATEN_COPY, "at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>"),
        (ATEN_MUL, "at::native::vectorized_elementwise_kernel<MulFunctor>"),
        (
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::M<(int)2>>>>(T1::Params)",
            "cutlass::device_kernel<FlashAttnFwdSm90>",
        ),
        ("bool ns::operator<(int, int)", "ns::operator<"),
        ("", "(no name)"),
        ("  ", "(no name)"),
    ],
)
def test_name(full: str, expected: str) -> None:
    assert normalise(full) == expected


def test_template_arguments_of_one_kernel_give_one_name() -> None:
    names = {normalise(f"void ns::decode<(int){size}, __nv_bfloat16>(const T1 *, float *)") for size in (64, 128)}
    assert names == {"ns::decode"}


def test_elementwise_kernels_of_different_functions_stay_apart() -> None:
    assert normalise(ATEN_COPY) != normalise(ATEN_MUL)


@pytest.mark.parametrize(
    "name", ["x" * 5000, "<<<>>>", "a<b", "a)b", "void f(", "::", "(((", "void void void", "\u00e9\u4e2d_kernel"]
)
def test_odd_names_give_some_name(name: str) -> None:
    assert normalise(name)


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("void flash::flash_fwd_splitkv_kernel<Traits>(Params)", Category.ATTENTION),
        ("_fwd_grouped_kernel_stage1", Category.ATTENTION),
        ("_fwd_kernel_stage2", Category.ATTENTION),
        ("kernel_unified_attention_3d", Category.ATTENTION),
        ("reduce_segments", Category.ATTENTION),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<(int)1>(T)", Category.ATTENTION),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", Category.ATTENTION),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<X>>>(T)", Category.ATTENTION),
        ("void vllm::reshape_and_cache_flash_kernel<x>(T)", Category.KV_CACHE),
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT", Category.GEMM),
        ("void marlin::Marlin<x>(T)", Category.GEMM),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<x>>(T)", Category.GEMM),
        ("fused_moe_kernel", Category.MOE),
        ("void vllm::fused_add_rms_norm_kernel<x>(T)", Category.NORM),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", Category.NORM),
        ("void vllm::rotary_embedding_kernel<x>(T)", Category.ROPE),
        ("void vllm::act_and_mul_kernel<x>(T)", Category.ACTIVATION),
        ("triton_poi_fused_mul_silu_slice_1", Category.ACTIVATION),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", Category.COMM),
        ("void flashinfer::sampling::TopKTopPSamplingFromProbKernel<x>(T)", Category.SAMPLING),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>(T3)",
            Category.SAMPLING,
        ),
        ("Memcpy HtoD", Category.MEMCPY),
        ("Memset", Category.MEMSET),
        (ATEN_COPY, Category.ELEMENTWISE),
        ("my_kernel", Category.OTHER),
    ],
)
def test_category(name: str, category: Category) -> None:
    assert categorise(name) is category
