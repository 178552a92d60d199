"""``torch.ops.upkernel.paged_decode`` against the fp32 reference.

With a GPU every case runs on the CUDA kernel (where it covers the case) and on the Triton kernel; without one, on the
Triton kernel in its interpreter. Needs torch and triton: ``nox -s kernels`` installs them for a CPU. Every input is
poisoned (inputs.py): a read past a length, an unwritten output or a page outside the table gives NaN.
"""

from __future__ import annotations

import importlib.util
import math
import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: nox -s kernels runs this test with it")
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed: nox -s kernels runs this test with it", allow_module_level=True)
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, those of triton's own library included

from upkernel.paged_decode import backends, torch_op  # noqa: E402
from upkernel.paged_decode.arguments import NotCoveredError  # noqa: E402
from upkernel.paged_decode.inputs import Case, Inputs, make_inputs  # noqa: E402
from upkernel.paged_decode.reference import paged_decode_reference, relative_error  # noqa: E402
from upkernel.paged_decode.torch_op import paged_decode, workspace_for  # noqa: E402

# The interpreter (triton 3.6) turns arrays of one element into numbers, which numpy warns about since 1.25.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # torch.compile's own
]
BF16, F16, E4M3, E5M2 = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2
KERNELS = ("cuda", "triton") if GPU else ("triton",)

# |out - ref| / |ref|. Rounding of the output and of the probabilities to 16 bits (bf16 8, f16 11 bits of mantissa); with an
# fp8 cache the probabilities are f16. The interpreter cuts bf16 off instead of rounding, hence twice the error there.
LIMIT = {BF16: 0.0035 if GPU else 0.005, F16: 0.0008}
MIXED = (0, 1, 15, 16, 17, 33, 100, 257) if GPU else (0, 1, 16, 17, 70)


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cuda" and (reason := backends._machine_refusal(torch.device("cuda", 0))):
        pytest.skip(reason)
    monkeypatch.setenv("UPKERNEL_PAGED_DECODE", request.param)
    return request.param


def call(x: Inputs, **options: object) -> None:
    x.out.fill_(math.nan)
    x.lse.fill_(math.nan)
    paged_decode(*x.args(), out=x.out, lse=x.lse, **options)


def check(case: Case, q_scale: float = 1.0, **options: object) -> None:
    x = make_inputs(case, seed=1, device=DEVICE)
    x.q.mul_(q_scale)
    if case.q_len > 1:
        options["q_len"] = case.q_len
    ref, ref_lse = paged_decode_reference(*x.args(), **options)
    try:
        call(x, **options)
    except NotCoveredError as reason:
        pytest.skip(str(reason))
    first = x.out.clone()
    call(x, **options)  # meets the scratch that the first call left
    assert torch.equal(first.view(torch.int16), x.out.view(torch.int16))
    assert not x.out.isnan().any()
    assert relative_error(x.out, ref) < LIMIT[case.q_dtype]
    empty = ref_lse.isinf()
    assert torch.equal(x.lse.isinf(), empty)
    torch.testing.assert_close(x.lse[~empty], ref_lse[~empty], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtypes", [(BF16, BF16), (F16, F16), (BF16, E4M3), (BF16, E5M2), (F16, E4M3), (F16, E5M2)])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_dtypes_and_head_dims(kernel: str, dtypes: tuple, dim: int) -> None:
    check(Case(MIXED, 8, 2, head_dim=dim, q_dtype=dtypes[0], kv_dtype=dtypes[1]))


@pytest.mark.parametrize("group", range(1, 17))
def test_groups(kernel: str, group: int) -> None:
    check(Case(MIXED[2:], group, 1, head_dim=64, q_dtype=F16, kv_dtype=E4M3))


@pytest.mark.parametrize("page", [1, 16, 32, 64, 128])
@pytest.mark.parametrize("layout", ["nhd", "hnd", "vllm"])
def test_pages_and_layouts(kernel: str, page: int, layout: str) -> None:
    lens = (0, 1, page - 1, page, page + 1, 2 * page + 3)
    check(Case(lens, 4, 2, head_dim=64, page=page, layout=layout, q_dtype=F16, kv_dtype=F16))


@pytest.mark.parametrize(("q_len", "group"), [(2, 1), (2, 4), (3, 5), (4, 4), (5, 3), (8, 1), (8, 2), (7, 7), (8, 16)], ids=str)
@pytest.mark.parametrize("kv", [BF16, E4M3])
def test_query_lengths_are_causal(kernel: str, kv: torch.dtype, q_len: int, group: int) -> None:
    # The lengths below q_len leave queries that see nothing.
    check(Case((*MIXED, q_len), 2 * group, 2, head_dim=128 if GPU else 64, kv_dtype=kv, q_len=q_len))


@pytest.mark.parametrize("q_len", [1, 4])
@pytest.mark.parametrize("window", [1, 16, 33])
def test_window(kernel: str, window: int, q_len: int) -> None:
    check(Case(MIXED, 4, 2, head_dim=64, q_len=q_len), window=window)


def test_window_reads_nothing_before_it(kernel: str) -> None:
    # An engine frees the pages that a window has left: their content may be anything, and their table entry page 0.
    case = Case((70,), 4, 2, head_dim=64)
    x = make_inputs(case, seed=1, device=DEVICE)
    ref = paged_decode_reference(*x.args(), window=20)[0]
    x.k[x.table[0, :3].long()] = math.nan
    x.v[x.table[0, :3].long()] = math.nan
    x.k[x.table[0, 3].long(), :2] = math.nan
    x.v[x.table[0, 3].long(), :2] = math.nan
    call(x, window=20)
    assert relative_error(x.out, ref) < LIMIT[BF16]


@pytest.mark.parametrize("q_len", [1, 2])
def test_soft_cap_and_sinks(kernel: str, q_len: int) -> None:
    case = Case(MIXED, 8, 2, head_dim=64, q_len=q_len)
    check(case, q_scale=8.0, soft_cap=5.0)
    check(case, sinks=torch.linspace(-3, 8, 8, device=DEVICE))
    check(case, q_scale=8.0, soft_cap=5.0, sinks=torch.linspace(-3, 8, 8, device=DEVICE), window=20, lse_base2=True)


def test_scales(kernel: str) -> None:
    case = Case(MIXED, 4, 2, head_dim=64, kv_dtype=E4M3)
    check(case, k_scale=0.7, v_scale=0.013)
    check(case, k_scale=torch.tensor(0.7, device=DEVICE), v_scale=3.0)
    heads = {"k_scale": torch.tensor([0.5, 1.5], device=DEVICE), "v_scale": torch.tensor([2.0, 0.25], device=DEVICE)}
    check(case, **heads)


@pytest.mark.parametrize("size", [1e-30, 1e-5, 1e5, 1e30])
def test_query_range_of_bf16_with_fp8_cache(kernel: str, size: float) -> None:
    # f16 operands end at 65504; sm_scale undoes the factor so that the softmax stays soft.
    check(Case(MIXED, 4, 2, head_dim=64, kv_dtype=E4M3), q_scale=size, sm_scale=0.088 / size)


def flat(x: Inputs, case: Case) -> dict[str, torch.Tensor]:
    counts = [-(-n // case.page) for n in case.lens]
    ends = torch.tensor([0, *counts]).cumsum(0).int().to(DEVICE)
    return {"block_table": torch.cat([x.table[b, :n] for b, n in enumerate(counts)]), "indptr": ends}


def test_flat_page_list_equals_the_table(kernel: str) -> None:
    case = Case(MIXED, 4, 2, head_dim=64)
    x = make_inputs(case, 3, device=DEVICE)
    call(x)
    y = flat(x, case)
    out = paged_decode(x.q, x.k, x.v, y["block_table"], x.lens, indptr=y["indptr"])
    assert torch.equal(out.view(torch.int16), x.out.view(torch.int16))


def test_strided_query_and_output(kernel: str) -> None:
    case = Case(MIXED, 4, 2, head_dim=64)
    x = make_inputs(case, 3, device=DEVICE)
    call(x)
    both = torch.full((len(MIXED), 12, 64), math.nan, dtype=BF16, device=DEVICE)
    both[:, 4:8] = x.q
    paged_decode(both[:, 4:8], x.k, x.v, x.table, x.lens, out=both[:, 8:])
    assert torch.equal(both[:, 8:].reshape(-1).view(torch.int16), x.out.reshape(-1).view(torch.int16))
    assert both[:, :4].isnan().all()


def test_one_workspace_serves_different_calls(kernel: str) -> None:
    workspace = workspace_for(DEVICE, batch=8, heads_q=16, heads_kv=1, head_dim=128)
    for case in (Case((257,) * 2, 2, 2, head_dim=64), Case((300, 4, 90), 16, 1), Case((257,) * 8, 4, 4, head_dim=64)) * 2:
        x = make_inputs(case, 3, device=DEVICE)
        call(x, workspace=workspace)
        assert relative_error(x.out, paged_decode_reference(*x.args())[0]) < LIMIT[BF16]


def test_under_torch_compile(kernel: str) -> None:
    x = make_inputs(Case((5, 40), 4, 2, head_dim=64), 3, device=DEVICE)
    want, want_lse = paged_decode_reference(*x.args())

    def model(q: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, lse = torch.ops.upkernel.paged_decode(q * 1.0, x.k, x.v, x.table, x.lens, return_lse=True)
        paged_decode(q, x.k, x.v, x.table, x.lens, out=out)
        return a * 2, lse, out + 1

    compiled = torch.compile(model, fullgraph=True, backend="inductor" if GPU else "aot_eager")
    a, lse, b = compiled(x.q, x.out)
    assert relative_error(a, 2 * want) < LIMIT[BF16]
    assert relative_error(b, 1 + want) < LIMIT[BF16]
    torch.testing.assert_close(lse, want_lse, rtol=2e-3, atol=2e-3)
    assert relative_error(x.out, want) < LIMIT[BF16]


def test_operator_check(kernel: str) -> None:
    x = make_inputs(Case((5, 40), 4, 2, head_dim=64), 3, device=DEVICE)
    torch.library.opcheck(torch.ops.upkernel.paged_decode.default, x.args(), {"return_lse": True})
    torch.library.opcheck(torch.ops.upkernel.paged_decode.default, x.args())
    torch.library.opcheck(torch.ops.upkernel.paged_decode.out, x.args(), {"out": x.out, "lse": x.lse})


@pytest.mark.skipif(not GPU, reason="CUDA graphs need a GPU")
def test_graph_replay_with_other_lengths(kernel: str) -> None:
    x, y = make_inputs(Case((500, 1200, 64, 3000)), 1), make_inputs(Case((3000, 1, 700, 0)), 2)
    table = torch.zeros(4, max(x.table.shape[1], y.table.shape[1]), dtype=torch.int32, device="cuda")
    lens = torch.ones(4, dtype=torch.int32, device="cuda")
    k, v = torch.cat([x.k, y.k]), torch.cat([x.v, y.v])
    for warm in (True, False):  # without a call before the capture, the workspace is part of the graph
        stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            if warm:
                paged_decode(x.q, k, v, table, lens, out=x.out)
            with torch.cuda.graph(graph, stream=stream):
                paged_decode(x.q, k, v, table, lens, out=x.out)
            for z, shift in ((x, 0), (y, x.k.shape[0]), (x, 0)):
                table[:, : z.table.shape[1]] = z.table + shift
                lens.copy_(z.lens)
                x.out.fill_(math.nan)
                graph.replay()
                stream.synchronize()
                assert relative_error(x.out, paged_decode_reference(x.q, z.k, z.v, z.table, z.lens)[0]) < LIMIT[BF16]


@pytest.mark.skipif(not GPU, reason="needs 4 GB")
def test_cache_over_two_billion_elements(kernel: str) -> None:
    # The last pages lie past element 2^31 of each tensor; the rest is never touched.
    pages, page, heads, dim = 2**31 // (16 * 8 * 64) + 64, 16, 8, 64
    k = torch.empty(pages, page, heads, dim, dtype=E4M3, device="cuda")
    v = torch.empty_like(k)
    small = make_inputs(Case((900, 33), 16, heads, head_dim=dim, kv_dtype=E4M3), 3, poison=False)
    count = small.k.shape[0]
    k.view(torch.uint8)[-count:] = small.k.view(torch.uint8)
    v.view(torch.uint8)[-count:] = small.v.view(torch.uint8)
    out = paged_decode(small.q, k, v, small.table + (pages - count), small.lens)
    assert relative_error(out, paged_decode_reference(*small.args())[0]) < LIMIT[BF16]


def test_long_context(kernel: str) -> None:
    check(Case((200_000 if GPU else 1500, 7), 4, 1, head_dim=128 if GPU else 64))


@pytest.mark.parametrize("seed", range(5 if GPU else 1))
def test_random_ragged_batches(kernel: str, seed: int) -> None:
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    lens = st.lists(st.integers(0, 700 if GPU else 60), min_size=1, max_size=40 if GPU else 5)

    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=200 if GPU else 10, deadline=None, database=None)
    @hypothesis.given(lens, st.sampled_from([1, 16, 64]), st.sampled_from([BF16, E4M3]), st.sampled_from([0, 24]))
    def compare(lens: list[int], page: int, kv: torch.dtype, window: int) -> None:
        x = make_inputs(Case(tuple(lens), 4, 2, head_dim=64, page=page, kv_dtype=kv), sum(lens), device=DEVICE)
        call(x, window=window)
        assert not x.out.isnan().any()
        assert relative_error(x.out, paged_decode_reference(*x.args(), window=window)[0]) < LIMIT[BF16] or not any(lens)

    compare()


X = dict[str, object]


def good() -> X:
    x = make_inputs(Case((5, 40), 4, 2, head_dim=64), 3, device=DEVICE)
    return {"q": x.q, "k_cache": x.k, "v_cache": x.v, "block_table": x.table, "seq_lens": x.lens}


def zeros(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x: {"q": x["q"].float()}, NotCoveredError, "q is float32, covered are bfloat16, float16"),
        (lambda x: {"q": x["q"].half()}, NotCoveredError, "k_cache is bfloat16 with q float16; .* float16, float8_e4m3fn"),
        (lambda x: {"v_cache": x["v_cache"].half()}, ValueError, "k_cache is bfloat16 and v_cache is float16"),
        (lambda x: {"k_cache": x["k_cache"][:1]}, ValueError, r"v_cache is \[\d+, 16, 2, 64\], k_cache is \[1, 16, 2, 64\]"),
        (lambda x: {"q": x["q"][:, :, :32]}, ValueError, "head_dim is 32 in q and 64 in k_cache"),
        (
            lambda x: {"q": zeros(2, 4, 96), "k_cache": zeros(4, 16, 2, 96), "v_cache": zeros(4, 16, 2, 96)},
            NotCoveredError,
            "head_dim is 96, covered are 64, 128, 256",
        ),
        (lambda x: {"q": x["q"][:, :3]}, ValueError, "3 heads, which is not a multiple of the 2 heads"),
        (lambda x: {"q": zeros(2, 34, 64)}, NotCoveredError, "34 heads over 2 of k_cache: 17 for each, covered are 1 to 16"),
        (
            lambda x: {"k_cache": zeros(4, 24, 2, 64), "v_cache": zeros(4, 24, 2, 64)},
            NotCoveredError,
            "pages of 24 tokens, which is not a power of two",
        ),
        (lambda x: {"q": zeros(64, 2, 4).permute(1, 2, 0)}, ValueError, "q's last dimension has stride 8"),
        (lambda x: {"seq_lens": x["seq_lens"].long()}, ValueError, "seq_lens is int64, it must be int32"),
        (lambda x: {"seq_lens": x["seq_lens"][:1]}, ValueError, "q has 2 tokens, but seq_lens has 1 requests of q_len 1"),
        (lambda x: {"block_table": x["block_table"][:1]}, ValueError, r"block_table is \[1, 5\], it must be \[2, pages\]"),
        (lambda x: {"q_len": 9}, NotCoveredError, "q_len is 9, covered are 1 to 8"),
        (lambda x: {"out": zeros(2, 4, 32)}, ValueError, r"out is bfloat16 \[2, 4, 32\], it must be bfloat16 \[2, 4, 64\]"),
        (lambda x: {"out": zeros(2, 4, 64).half()}, ValueError, "out is float16 .* it must be bfloat16"),
        (lambda x: {"lse": zeros(2, 5, dtype=torch.float32)}, ValueError, r"lse is float32 \[2, 5\], .* float32 \[2, 4\]"),
        (lambda x: {"k_scale": zeros(3, dtype=torch.float32)}, ValueError, r"k_scale is float32 \[3\], .* with 1 or 2 values"),
        (lambda x: {"sinks": zeros(3, dtype=torch.float32)}, ValueError, r"sinks is float32 \[3\], .* float32 \[4\]"),
        (lambda x: {"window": -1}, ValueError, "window is -1"),
        (lambda x: {"workspace": zeros(512, dtype=torch.uint8)}, ValueError, "workspace has 512 bytes, this call needs"),
        (lambda x: {"seq_lens": x["seq_lens"] - 6}, ValueError, r"seq_lens\[0\] is -1, it must be 0 or more"),
        (lambda x: {"seq_lens": x["seq_lens"] + 80}, ValueError, r"5 pages for request 0, but seq_lens\[0\] is 85, .* 6 pages"),
        (lambda x: {"block_table": x["block_table"] + 900}, ValueError, "names page .* for request 0, but k_cache has"),
    ],
)  # fmt: skip
def test_bad_input_names_the_argument_and_both_values(
    change: object, error: type, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPKERNEL_CHECK", "1")
    x = good()
    with pytest.raises(error, match=message):
        paged_decode(**(x | change(x)))


@pytest.mark.parametrize("name", ["k_scale", "v_scale", "sinks", "block_table", "out"])
def test_a_tensor_on_another_device_is_refused(name: str) -> None:
    from upkernel.paged_decode import arguments

    x = good()
    x["out"] = torch.empty_like(x["q"])
    like = {
        "k_scale": zeros(1, dtype=torch.float32),
        "v_scale": zeros(1, dtype=torch.float32),
        "sinks": zeros(4, dtype=torch.float32),
    } | x
    with pytest.raises(ValueError, match=f"{name} is on meta, q is on {DEVICE}"):
        arguments.check(arguments.Arguments(**(x | {name: like[name].to("meta")})))


def test_an_old_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from upkernel.paged_decode import arguments

    x = good()
    a = arguments.Arguments(**x, out=torch.empty_like(x["q"]))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))

    class OnGpu:
        type = "cuda"

        def __getattr__(self, name: str) -> object:
            return getattr(a.q.device, name)

    class Query:
        device = OnGpu()

    for name in ("k_cache", "v_cache", "block_table", "seq_lens", "out"):
        object.__setattr__(a, name, type("T", (), {"device": Query.device, "numel": lambda _: 1})())
    object.__setattr__(a, "q", Query)
    with pytest.raises(NotCoveredError, match=r"compute capability 7\.5, the kernels need 8\.0"):
        arguments._check_device(a)


def test_a_fallback_is_logged_with_its_reason_and_a_fixed_kernel_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = good()
    backends._say_once.cache_clear()
    monkeypatch.setattr(backends, "cuda_refusal", lambda _: "nvcc was not found")
    paged_decode(**x)
    assert "the Triton kernel serves paged decode, not the CUDA kernel: nvcc was not found" in caplog.text
    monkeypatch.setenv("UPKERNEL_PAGED_DECODE", "cuda")
    with pytest.raises(NotCoveredError, match="UPKERNEL_PAGED_DECODE=cuda, but nvcc was not found"):
        paged_decode(**x)
    monkeypatch.setenv("UPKERNEL_PAGED_DECODE", "metal")
    with pytest.raises(ValueError, match="'metal', it must be cuda, triton or unset"):
        torch_op.paged_decode(**x)
