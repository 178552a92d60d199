"""The engine adapters against the fp32 reference, with stand-ins for the engines' base classes.

They show what an adapter passes on: layouts, lengths, scales, windows, which batches it keeps. That the engines accept
them is seen only in the engines. Needs torch and triton (``nox -s kernels``); on a CPU in Triton's interpreter.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: nox -s kernels runs this test with it")
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed: nox -s kernels runs this test with it", allow_module_level=True)
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"

from upkernel.paged_decode.flashinfer_module import BatchDecodeWithPagedKVCacheWrapper  # noqa: E402
from upkernel.paged_decode.inputs import Case, Inputs, make_inputs  # noqa: E402
from upkernel.paged_decode.reference import paged_decode_reference, relative_error  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
LIMIT = 0.0035 if GPU else 0.005
LENS = (5, 33, 0, 48)


def pages_of(x: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """FlashInfer's indptr, indices and last_page_len."""
    counts = [-(-n // case.page) for n in case.lens]
    indptr = torch.tensor([0, *counts]).cumsum(0).int()
    indices = torch.cat([x.table[b, :n] for b, n in enumerate(counts)])
    return indptr, indices, torch.tensor([(n - 1) % case.page + 1 if n else 0 for n in case.lens], dtype=torch.int32)


# ---- FlashInfer


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("form", ["pair", "one tensor"])
def test_flashinfer_wrapper(layout: str, form: str) -> None:
    case = Case(LENS, 4, 2, head_dim=64, layout="hnd" if layout == "HND" else "nhd")
    x = make_inputs(case, 1, device=DEVICE)
    k, v = (x.k.transpose(1, 2), x.v.transpose(1, 2)) if layout == "HND" else (x.k, x.v)
    cache = torch.stack([k, v], 1) if form == "one tensor" else (k, v)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(torch.empty(1, device=DEVICE), layout)
    wrapper.plan(*pages_of(x, case), 4, 2, 64, 16, q_data_type="bfloat16", window_left=20, logits_soft_cap=30.0)
    out, lse = wrapper.run(x.q, cache, q_scale=2.0, k_scale=0.5, v_scale=3.0, return_lse=True)
    options = {"window": 21, "soft_cap": 30.0, "v_scale": 3.0, "lse_base2": True}
    want, want_lse = paged_decode_reference(*x.args(), **options)
    assert relative_error(out, want) < LIMIT
    torch.testing.assert_close(lse, want_lse, rtol=2e-3, atol=2e-3)


def test_flashinfer_wrapper_with_the_callers_buffers_follows_a_new_plan() -> None:
    indptr, last = torch.zeros(5, dtype=torch.int32, device=DEVICE), torch.zeros(4, dtype=torch.int32, device=DEVICE)
    indices = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(torch.empty(1, device=DEVICE), "NHD", True, True, indptr, indices, last)
    for lens in (LENS, (0, 100, 1, 16)):
        case = Case(lens, 4, 2, head_dim=64)
        x = make_inputs(case, 2, device=DEVICE)
        wrapper.plan(*pages_of(x, case), 4, 2, 64, 16, q_data_type=BF16)
        assert wrapper._indptr is indptr
        assert wrapper._indices is indices
        assert wrapper._lens.tolist() == list(lens)
        assert relative_error(wrapper.run(x.q, (x.k, x.v)), paged_decode_reference(*x.args())[0]) < LIMIT
    with pytest.raises(ValueError, match="plan has 3 requests and 9 pages, the graph's buffers hold 4 and 64"):
        wrapper.plan(indptr[:4], indices[:9], last[:3], 4, 2, 64, 16, q_data_type=BF16)


def test_flashinfer_wrapper_refuses_what_it_does_not_cover() -> None:
    wrapper = BatchDecodeWithPagedKVCacheWrapper(torch.empty(1, device=DEVICE))
    case = Case((5,), 4, 2, head_dim=64)
    x = make_inputs(case, 2, device=DEVICE)
    with pytest.raises(NotImplementedError, match="ROPE_LLAMA"):
        wrapper.plan(*pages_of(x, case), 4, 2, 64, 16, pos_encoding_mode="ROPE_LLAMA")
    wrapper.plan(*pages_of(x, case), 4, 2, 64, 16, q_data_type="float16")
    with pytest.raises(ValueError, match=r"torch\.bfloat16.*planned was.*torch\.float16"):
        wrapper.run(x.q, (x.k, x.v))
    with pytest.raises(ValueError, match="kv_layout is 'DNH'"):
        BatchDecodeWithPagedKVCacheWrapper(torch.empty(1, device=DEVICE), "DNH")


# ---- SGLang


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    base = ModuleType("sglang.srt.layers.attention.base_attn_backend")
    base.AttentionBackend = type("AttentionBackend", (), {})
    monkeypatch.setitem(sys.modules, base.__name__, base)
    for name in ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.layers.attention"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.delitem(sys.modules, "upkernel.paged_decode.sglang_backend", raising=False)
    from upkernel.paged_decode import sglang_backend

    return sglang_backend


@pytest.mark.parametrize("kv", [BF16, E4M3])
def test_sglang_decode_reads_the_slot_table_in_place(sglang: ModuleType, kv: torch.dtype) -> None:
    lens = (5, 33, 1, 48)
    case = Case(lens, 4, 2, head_dim=64, kv_dtype=kv)
    x = make_inputs(case, 1, device=DEVICE)
    keys, values = x.k.reshape(-1, 2, 64), x.v.reshape(-1, 2, 64)
    # Rows of the requests are scattered over the pool, as SGLang reuses them.
    rows = torch.tensor([3, 1, 6, 2], device=DEVICE)
    table = torch.full((8, 64), 2**30, dtype=torch.int32, device=DEVICE)
    for b, n in enumerate(lens):
        at = torch.arange(n, device=DEVICE)
        table[rows[b], :n] = x.table[b, at // 16] * 16 + (at % 16).int()
    pool = SimpleNamespace(get_kv_buffer=lambda _: (keys, values), set_kv_buffer=lambda *a: written.append(a))
    written: list[tuple] = []
    runner = SimpleNamespace(token_to_kv_pool=pool, req_to_token_pool=SimpleNamespace(req_to_token=table))
    backend = sglang.UpkernelBackend(runner)
    backend.init_cuda_graph_state(16, 16)
    assert backend.get_cuda_graph_seq_len_fill_value() == 1
    lens_buffer = backend.lens
    batch = SimpleNamespace(
        batch_size=4,
        seq_lens=torch.tensor(lens, device=DEVICE),  # int64, as SGLang's
        req_pool_indices=rows,
        out_cache_loc="locations",
        forward_mode=SimpleNamespace(is_target_verify=lambda: False),
    )
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    assert backend.lens is lens_buffer
    layer = SimpleNamespace(
        tp_q_head_num=4,
        qk_head_dim=64,
        layer_id=7,
        scaling=0.2,
        logit_cap=25.0,
        sliding_window_size=19,
        k_scale=torch.tensor(0.5, device=DEVICE) if kv == E4M3 else None,
        v_scale=torch.tensor(2.0, device=DEVICE) if kv == E4M3 else None,
    )
    out = backend.forward_decode(x.q.view(4, -1), "k", "v", layer, batch)
    assert written == [(layer, "locations", "k", "v", layer.k_scale, layer.v_scale)]
    scales = {"k_scale": 0.5, "v_scale": 2.0} if kv == E4M3 else {}
    want = paged_decode_reference(*x.args(), sm_scale=0.2, soft_cap=25.0, window=20, **scales)[0]
    assert out.shape == (4, 256)
    assert relative_error(out.view(4, 4, 64), want) < LIMIT
    batch.forward_mode.is_target_verify = lambda: True
    with pytest.raises(NotImplementedError, match="speculative verification"):
        backend.init_forward_metadata_out_graph(batch)
    with pytest.raises(NotImplementedError, match="--prefill-attention-backend"):
        backend.forward_extend()


# ---- vLLM


class FlashImpl:
    """Records what reaches the engine's FlashAttention."""

    def __init__(self, num_heads, head_size, scale, num_kv_heads, alibi, window, dtype, *rest):  # noqa: PLR0917
        soft_cap, attn_type = [*rest, "decoder"][:2] if rest else (None, "decoder")
        self.num_heads, self.head_size, self.scale, self.num_kv_heads = num_heads, head_size, scale, num_kv_heads
        self.alibi_slopes, self.kv_cache_dtype, self.attn_type = alibi, dtype, attn_type
        self.sliding_window = (-1, -1) if window is None else (window - 1, 0)
        self.logits_soft_cap, self.num_queries_per_kv, self.sinks = soft_cap or 0, num_heads // num_kv_heads, None
        self.supports_quant_query_input = True
        self.seen: list[torch.Tensor] = []

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        pass

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, *rest):  # noqa: PLR0917
        assert self.supports_quant_query_input
        self.seen.append(query)
        return output.fill_(7)


class FlashBuilder:
    def __init__(self, spec, layer_names, vllm_config, device):
        self.num_heads_q, self.num_heads_kv, self.headdim, self.dcp_world_size = 4, 2, 64, 1

    def build(self, common_prefix_len, common, fast_build=False):
        return SimpleNamespace(
            num_actual_tokens=common.num_actual_tokens,
            block_table=common.block_table_tensor,
            seq_lens=common.seq_lens,
            fast_build=fast_build,
        )


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    def module(name: str, **content: object) -> None:
        found = ModuleType(name)
        found.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, found)

    ops = SimpleNamespace(scaled_fp8_quant=lambda q, scale: ((q.float() / scale).to(E4M3), scale))
    for name in ("vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends"):
        module(name)
    module("vllm", _custom_ops=ops)
    module(
        "vllm.v1.attention.backend",
        AttentionCGSupport=SimpleNamespace(UNIFORM_BATCH=2),
        AttentionType=SimpleNamespace(DECODER="decoder"),
        CommonAttentionMetadata=SimpleNamespace,
    )
    module(
        "vllm.v1.attention.backends.flash_attn",
        FlashAttentionBackend=type("FlashAttentionBackend", (), {}),
        FlashAttentionImpl=FlashImpl,
        FlashAttentionMetadata=SimpleNamespace,
        FlashAttentionMetadataBuilder=FlashBuilder,
    )
    monkeypatch.delitem(sys.modules, "upkernel.paged_decode.vllm_backend", raising=False)
    from upkernel.paged_decode import vllm_backend

    return vllm_backend


def common(x: Inputs, q_lens: list[int], **changes: object) -> SimpleNamespace:
    starts = torch.tensor([0, *q_lens]).cumsum(0).int()
    found = {
        "max_query_len": max(q_lens),
        "num_reqs": len(q_lens),
        "num_actual_tokens": sum(q_lens),
        "query_start_loc_cpu": starts,
        "causal": True,
        "seq_lens": x.lens,
        "block_table_tensor": x.table,
    }
    return SimpleNamespace(**(found | changes))


def builder(vllm: ModuleType, drafted: int = 0) -> object:
    speculative = SimpleNamespace(num_speculative_tokens=drafted) if drafted else None
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=8), speculative_config=speculative)
    return vllm.UpkernelBuilder(None, ["layer"], config, torch.device(DEVICE))


@pytest.mark.parametrize("kv", [BF16, E4M3])
@pytest.mark.parametrize("q_len", [1, 3])
def test_vllm_decode(vllm: ModuleType, kv: torch.dtype, q_len: int) -> None:
    case = Case(LENS, 4, 2, head_dim=64, kv_dtype=kv, layout="vllm", q_len=q_len)
    x = make_inputs(case, 1, device=DEVICE)
    cache = x.k._base
    if kv == E4M3:
        cache = cache.view(torch.uint8)  # as the engine stores it
    layer = SimpleNamespace(
        _k_scale=torch.tensor(0.5, device=DEVICE), _v_scale=torch.tensor(2.0, device=DEVICE), _q_scale=torch.tensor(1.0)
    )
    impl = vllm.UpkernelImpl(4, 64, 0.2, 2, None, 20, "fp8" if kv == E4M3 else "auto", 25.0)
    assert not impl.supports_quant_query_input  # the layer would hand over fp8 queries
    impl.sinks = torch.linspace(-1, 1, 4, device=DEVICE).to(BF16)
    impl.process_weights_after_loading(BF16)
    metadata = builder(vllm, q_len - 1).build(0, common(x, [q_len] * 4))
    assert metadata.fast_build  # no schedule for a kernel that does not run
    # Graph padding: more rows in query and output than tokens.
    query = torch.cat([x.q, torch.full((3, 4, 64), math.nan, dtype=BF16, device=DEVICE)])
    output = torch.full_like(query, 5.0)
    assert impl.forward(layer, query, None, None, cache, metadata, output) is output
    scales = {"k_scale": 0.5, "v_scale": 2.0} if kv == E4M3 else {}
    options = {"sm_scale": 0.2, "soft_cap": 25.0, "window": 20, "sinks": impl.sinks.float(), "q_len": q_len}
    want = paged_decode_reference(*x.args(), **options, **scales)[0]
    assert relative_error(output[: 4 * q_len], want) < LIMIT
    assert (output[4 * q_len :] == 5).all()
    assert not impl._flash.seen


@pytest.mark.parametrize(
    ("q_lens", "changes", "expected"),
    [
        ([1, 1, 1, 1], {}, 1),
        ([3, 3, 3, 3], {}, 3),
        ([2, 2, 0, 0], {}, 2),  # requests that pad a graph
        ([3, 1, 3, 3], {}, 0),
        ([4, 2, 2, 0], {}, 0),
        ([9, 9], {}, 0),
        ([1, 1, 1, 1], {"causal": False}, 0),
    ],
)
def test_vllm_keeps_uniform_batches_only(vllm: ModuleType, q_lens: list[int], changes: dict, expected: int) -> None:
    x = make_inputs(Case(LENS, 4, 2, head_dim=64), 1, device=DEVICE)
    assert vllm.uniform_q_len(common(x, q_lens, **changes), 8) == expected


def test_vllm_short_prompts_are_no_decode_without_speculation(vllm: ModuleType) -> None:
    # Scratch is allocated for the engine's own query length.
    x = make_inputs(Case(LENS, 4, 2, head_dim=64), 1, device=DEVICE)
    assert builder(vllm).build(0, common(x, [3, 3, 3, 3])).upkernel_q_len == 0
    assert builder(vllm, 2).build(0, common(x, [3, 3, 3, 3])).upkernel_q_len == 3


def test_vllm_hands_prefill_to_the_engine_with_quantised_queries(vllm: ModuleType) -> None:
    x = make_inputs(Case(LENS, 4, 2, head_dim=64, kv_dtype=E4M3, layout="vllm"), 1, device=DEVICE)
    impl = vllm.UpkernelImpl(4, 64, 0.2, 2, None, None, "fp8")
    layer = SimpleNamespace(_k_scale=torch.tensor(1.0), _v_scale=torch.tensor(1.0), _q_scale=torch.tensor(2.0, device=DEVICE))
    metadata = builder(vllm).build(0, common(x, [1, 12, 1, 30]))
    assert metadata.upkernel_q_len == 0
    assert not metadata.fast_build
    query = torch.ones(44, 4, 64, dtype=BF16, device=DEVICE)
    output = torch.zeros_like(query)
    impl.forward(layer, query, None, None, x.k._base.view(torch.uint8), metadata, output)
    assert impl._flash.seen[0].dtype == E4M3
    assert (impl._flash.seen[0].float() == 0.5).all()
    assert (output == 7).all()
    with pytest.raises(NotImplementedError, match="ALiBi"):
        vllm.UpkernelImpl(4, 64, 0.2, 2, [0.1] * 4, None, "auto")
    with pytest.raises(NotImplementedError, match="32 query heads a KV head, covered are 1 to 16"):
        vllm.UpkernelImpl(64, 64, 0.2, 2, None, None, "auto")
