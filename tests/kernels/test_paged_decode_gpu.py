"""The CUDA kernel against the fp32 reference. Needs a GPU; every input set is poisoned (see inputs.py)."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA GPU", allow_module_level=True)
pytest.importorskip("tvm_ffi")

from upkernel.paged_decode.bench import build_for  # noqa: E402
from upkernel.paged_decode.cuda_kernel import CudaPagedDecode  # noqa: E402
from upkernel.paged_decode.inputs import Case, make_inputs, ragged  # noqa: E402
from upkernel.paged_decode.reference import paged_decode_reference, relative_error  # noqa: E402

BF16, FP16, E4M3, E5M2 = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2

# |out - ref| / |ref|: rounding of the output and of the probabilities to 16 bits, bf16 8 bits of mantissa and f16 11.
LIMIT = {(BF16, BF16): 0.0035, (FP16, FP16): 0.0006, (BF16, E4M3): 0.0025, (BF16, E5M2): 0.0025, (FP16, E4M3): 0.0008}
MIXED = (0, 1, 15, 16, 17, 31, 32, 33, 100, 257, 1000)


def check(case: Case, q_scale: float = 1.0, grid: int | None = None, **options: object) -> None:
    x = make_inputs(case, seed=1)
    x.q.mul_(q_scale)
    kernel = CudaPagedDecode(build_for(case), grid=grid)
    ref, ref_lse = paged_decode_reference(*x.args(), **options)
    for _ in range(2):  # the second launch meets the counters that the first one left
        x.out.fill_(math.nan)
        x.lse.fill_(math.nan)
        kernel(*x.args(), x.out, lse=x.lse, **options)
        assert not x.out.isnan().any()
        assert relative_error(x.out, ref) < LIMIT[case.q_dtype, case.kv_dtype]
        empty = ref_lse.isinf()
        assert torch.equal(x.lse.isinf(), empty)
        torch.testing.assert_close(x.lse[~empty], ref_lse[~empty], rtol=2e-3, atol=2e-3)
    first = x.out.clone()
    kernel(*x.args(), x.out, lse=x.lse, **options)
    assert torch.equal(first.view(torch.int16), x.out.view(torch.int16))


@pytest.mark.parametrize("dtypes", LIMIT, ids=lambda d: "-".join(str(x).split(".")[-1] for x in d))
@pytest.mark.parametrize("group", [1, 4, 5, 8])
def test_mixed_lengths(dtypes: tuple, group: int) -> None:
    check(Case(MIXED, 2 * group, 2, q_dtype=dtypes[0], kv_dtype=dtypes[1]))


@pytest.mark.parametrize("kv", [BF16, E4M3])
@pytest.mark.parametrize("page", [1, 8, 16, 32, 64, 128])
@pytest.mark.parametrize("layout", ["nhd", "hnd", "vllm"])
def test_pages_and_layouts(kv: torch.dtype, page: int, layout: str) -> None:
    check(Case(MIXED, 8, 2, kv_dtype=kv, page=page, layout=layout))


@pytest.mark.parametrize("kv", [BF16, E4M3])
@pytest.mark.parametrize(
    ("lens", "heads_kv"),
    [((1024,), 8), ((8192,), 8), ((8191,), 1), ((40000,), 2), ((3,) * 40, 8), ((700,) * 200, 1), (ragged(16, 2000), 8)],
    ids=["1x1024", "1x8192", "mqa", "40000", "tiny", "many", "ragged"],
)
def test_splits(kv: torch.dtype, lens: tuple, heads_kv: int) -> None:
    check(Case(lens, 4 * heads_kv, heads_kv, kv_dtype=kv))


@pytest.mark.parametrize("grid", [1, 2, 7, 131])
def test_any_grid(grid: int) -> None:
    check(Case(MIXED, 8, 2), grid=grid)


@pytest.mark.parametrize("dim", [64, 256])
@pytest.mark.parametrize("kv", [BF16, E4M3])
def test_head_dims(dim: int, kv: torch.dtype) -> None:
    check(Case(MIXED, 8, 2, head_dim=dim, kv_dtype=kv))


@pytest.mark.parametrize("kv", [BF16, E4M3])
def test_sixteen_heads(kv: torch.dtype) -> None:
    check(Case(MIXED, 26, 2, kv_dtype=kv))
    check(Case(MIXED, 32, 2, kv_dtype=kv))


@pytest.mark.parametrize("kv", [BF16, E4M3])
@pytest.mark.parametrize("window", [1, 16, 33, 500])
def test_window(kv: torch.dtype, window: int) -> None:
    check(Case(MIXED, 8, 2, kv_dtype=kv), window=window)


@pytest.mark.parametrize("kv", [BF16, E4M3])
def test_soft_cap(kv: torch.dtype) -> None:
    check(Case(MIXED, 8, 2, kv_dtype=kv), q_scale=8.0, soft_cap=5.0)


@pytest.mark.parametrize("kv", [BF16, E4M3])
def test_sinks(kv: torch.dtype) -> None:
    sinks = torch.linspace(-3, 8, 8, device="cuda")
    check(Case(MIXED, 8, 2, kv_dtype=kv), sinks=sinks)


def test_scales_per_tensor_and_per_head() -> None:
    case = Case(MIXED, 8, 2, kv_dtype=E4M3)
    check(case, k_scale=0.7, v_scale=0.013)
    check(case, k_scale=torch.tensor(0.7, device="cuda"), v_scale=torch.tensor(3.0, device="cuda"))
    check(case, k_scale=torch.tensor([0.5, 1.5], device="cuda"), v_scale=torch.tensor([2.0, 0.25], device="cuda"))


@pytest.mark.parametrize("size", [1e-30, 1e-5, 1e3, 1e5, 1e30])
def test_query_range_of_bf16_with_fp8_cache(size: float) -> None:
    # f16 operands end at 65504; sm_scale undoes the factor so that the softmax stays soft.
    check(Case(MIXED, 8, 2, kv_dtype=E4M3), q_scale=size, sm_scale=0.088 / size)


def test_graph_replay_with_other_lengths() -> None:
    case = Case((500, 1200, 64, 3000), 32, 8)
    x, y = make_inputs(case, 1), make_inputs(Case((3000, 1, 700, 0), 32, 8), 2)
    kernel = CudaPagedDecode(build_for(case))
    width = max(x.table.shape[1], y.table.shape[1])
    table = torch.zeros(4, width, dtype=torch.int32, device="cuda")
    lens = torch.ones(4, dtype=torch.int32, device="cuda")
    k, v = torch.cat([x.k, y.k]), torch.cat([x.v, y.v])
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        kernel(x.q, k, v, table, lens, x.out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kernel(x.q, k, v, table, lens, x.out)
        for z, shift in ((x, 0), (y, x.k.shape[0]), (x, 0)):
            table[:, : z.table.shape[1]] = z.table + shift
            lens.copy_(z.lens)
            x.out.fill_(math.nan)
            graph.replay()
            stream.synchronize()
            ref = paged_decode_reference(x.q, z.k, z.v, z.table, z.lens)[0]
            assert relative_error(x.out, ref) < LIMIT[BF16, BF16]


def test_indptr() -> None:
    x = make_inputs(Case(MIXED, 8, 2), 3)
    counts = [-(-n // 16) for n in MIXED]
    flat = torch.cat([x.table[b, :n] for b, n in enumerate(counts)])
    indptr = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    kernel = CudaPagedDecode(build_for(Case(MIXED, 8, 2)))
    kernel(x.q, x.k, x.v, flat, x.lens, x.out, indptr=indptr, lse=x.lse, lse_base2=True)
    ref, lse = paged_decode_reference(x.q, x.k, x.v, flat, x.lens, indptr=indptr, lse_base2=True)
    assert relative_error(x.out, ref) < LIMIT[BF16, BF16]
    torch.testing.assert_close(x.lse[1:], lse[1:], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.__setitem__(0, a[0].to(FP16)), "dtype"),
        (lambda a: a.__setitem__(4, a[4].long()), "int32"),
        (lambda a: a.__setitem__(0, a[0][:, :7]), "multiple|heads"),
        (lambda a: a.__setitem__(4, a[4][:3]), "entries"),
    ],
    ids=["dtype", "lens", "heads", "batch"],
)
def test_bad_input(change: object, message: str) -> None:
    x = make_inputs(Case(MIXED, 8, 2), 3)
    kernel = CudaPagedDecode(build_for(Case(MIXED, 8, 2)))
    args = [*x.args(), x.out]
    change(args)
    with pytest.raises(ValueError, match=message):
        kernel(*args)
