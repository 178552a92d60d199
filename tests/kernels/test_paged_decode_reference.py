"""The fp32 reference of paged decode attention against torch's own attention and against formulas written out, on a CPU."""

from __future__ import annotations

import math
import subprocess

import pytest

torch = pytest.importorskip("torch")

from upkernel.paged_decode.cuda_build import CSRC, Build, find_nvcc  # noqa: E402
from upkernel.paged_decode.inputs import Case, Inputs, make_inputs  # noqa: E402
from upkernel.paged_decode.reference import gather_kv, paged_decode_reference, relative_error  # noqa: E402

BF16, E4M3, E5M2 = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
LENS = (0, 1, 15, 16, 17, 40)


def inputs(**changes: object) -> Inputs:
    settings = {"heads_q": 6, "heads_kv": 2, "head_dim": 64, "page": 16} | changes
    lens = settings.pop("lens", LENS)
    return make_inputs(Case(lens, **settings), seed=5, device="cpu")


def sdpa(x: Inputs, b: int, length: int, lo: int = 0) -> torch.Tensor:
    """Request b through scaled_dot_product_attention, with the pages gathered token by token."""
    page = x.k.shape[1]
    rows = [(int(x.table[b, i // page]), i % page) for i in range(lo, length)]
    k = torch.stack([x.k[p, r].float() for p, r in rows])  # [n, heads_kv, D]
    v = torch.stack([x.v[p, r].float() for p, r in rows])
    q = x.q[b].float()[:, None]  # [heads_q, 1, D]
    group = q.shape[0] // k.shape[1]
    k, v = (t.transpose(0, 1).repeat_interleave(group, 0) for t in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]


@pytest.mark.parametrize("layout", ["nhd", "hnd", "vllm"])
@pytest.mark.parametrize("kv", [BF16, torch.float16, E4M3, E5M2], ids=str)
@pytest.mark.parametrize("page", [1, 16])
def test_equals_torch_attention(layout: str, kv: torch.dtype, page: int) -> None:
    x = inputs(layout=layout, kv_dtype=kv, page=page)
    out, lse = paged_decode_reference(*x.args())
    assert not out.isnan().any()  # everything past a length is NaN in the cache and absurd in the table
    assert (out[0] == 0).all()
    assert (lse[0] == -math.inf).all()
    for b, length in enumerate(LENS[1:], 1):
        torch.testing.assert_close(out[b], sdpa(x, b, length), rtol=1e-5, atol=1e-5)


def test_one_token_returns_its_value() -> None:
    x = inputs(lens=(1, 1))
    out, lse = paged_decode_reference(*x.args(), sm_scale=0.25)
    for b in range(2):
        page = int(x.table[b, 0])
        torch.testing.assert_close(out[b], x.v[page, 0].float().repeat_interleave(3, 0))
        dot = (x.q[b].float() * x.k[page, 0].float().repeat_interleave(3, 0)).sum(-1) * 0.25
        torch.testing.assert_close(lse[b], dot)


def test_window_drops_the_older_tokens() -> None:
    x = inputs()
    out, _ = paged_decode_reference(*x.args(), window=5)
    for b, length in enumerate(LENS[1:], 1):
        torch.testing.assert_close(out[b], sdpa(x, b, length, lo=max(0, length - 5)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [0, 5])
def test_several_queries_are_causal(window: int) -> None:
    # Query i of a request must equal the only query of a request that ends with its token.
    x = inputs(q_len=3)
    out, lse = paged_decode_reference(*x.args(), q_len=3, window=window)
    for i in range(3):
        lens = (x.lens - 2 + i).clamp_min(0)
        one, one_lse = paged_decode_reference(x.q[i::3], x.k, x.v, x.table, lens, window=window)
        torch.testing.assert_close(out[i::3], one)
        torch.testing.assert_close(lse[i::3], one_lse)


def test_soft_cap_sinks_and_lse_by_hand() -> None:
    x = inputs(lens=(40,))
    cap, scale = 2.0, 0.3
    sinks = torch.linspace(-2, 2, 6)
    out, lse = paged_decode_reference(*x.args(), sm_scale=scale, soft_cap=cap, sinks=sinks)
    _, lse2 = paged_decode_reference(*x.args(), sm_scale=scale, soft_cap=cap, sinks=sinks, lse_base2=True)
    k, v = (gather_kv(c, x.table[0], 40, dtype=torch.float64) for c in (x.k, x.v))
    for head in range(6):
        logits = cap * torch.tanh(k[:, head // 3] @ x.q[0, head].double() * scale / cap)
        total = logits.exp().sum() + sinks[head].double().exp()
        want = (logits.exp()[:, None] * v[:, head // 3]).sum(0) / total
        torch.testing.assert_close(out[0, head].double(), want, rtol=1e-5, atol=1e-6)
        assert math.isclose(float(lse[0, head]), math.log(total), rel_tol=1e-5)
        assert math.isclose(float(lse2[0, head]), math.log2(total), rel_tol=1e-5)


def test_scales_per_tensor_and_per_head() -> None:
    x = inputs(kv_dtype=E4M3)
    plain, _ = paged_decode_reference(x.q, x.k, x.v, x.table, x.lens, sm_scale=0.1)
    both, _ = paged_decode_reference(*x.args(), sm_scale=0.05, k_scale=2.0, v_scale=torch.tensor(3.0))
    torch.testing.assert_close(both, plain * 3)
    heads, _ = paged_decode_reference(*x.args(), sm_scale=0.1, v_scale=torch.tensor([1.0, 4.0]))
    torch.testing.assert_close(heads[:, :3], plain[:, :3])
    torch.testing.assert_close(heads[:, 3:], plain[:, 3:] * 4)


def test_flat_page_list_equals_the_table() -> None:
    x = inputs()
    counts = [-(-n // 16) for n in LENS]
    flat = torch.cat([x.table[b, :n] for b, n in enumerate(counts)])
    indptr = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()])
    want, _ = paged_decode_reference(*x.args())
    got, _ = paged_decode_reference(x.q, x.k, x.v, flat, x.lens, indptr=indptr)
    assert torch.equal(got, want)


def test_bad_input_names_the_values() -> None:
    x = inputs()
    with pytest.raises(ValueError, match="5 query heads are not a multiple of 2"):
        paged_decode_reference(x.q[:, :5], x.k, x.v, x.table, x.lens)
    with pytest.raises(ValueError, match=r"seq_lens\[1\] is negative: -3"):
        paged_decode_reference(x.q, x.k, x.v, x.table, torch.tensor([0, -3, 0, 0, 0, 0]))
    with pytest.raises(ValueError, match="2 pages for a request of 40 tokens, which needs 3"):
        paged_decode_reference(x.q, x.k, x.v, x.table[:, :2], x.lens)


def test_nan_passes_no_bound() -> None:
    bad = torch.tensor([1.0, math.nan])
    assert not relative_error(bad, torch.ones(2)) < math.inf
    assert relative_error(torch.tensor([1.0, 1.1]), torch.ones(2)) == pytest.approx(0.1 / math.sqrt(2), rel=1e-5)


@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc on this machine")
@pytest.mark.parametrize(
    "build",
    [
        Build("bfloat16", "bfloat16"),
        Build("bfloat16", "float8_e4m3fn", group=8),
        Build("float16", "float8_e5m2", head_dim=64),
        Build("bfloat16", "float8_e4m3fn", group=16),
        Build("float16", "float16", head_dim=256, arch="80"),
        Build("bfloat16", "float8_e4m3fn", arch="80"),
        Build("bfloat16", "bfloat16", group=16, many=True),
        Build("float16", "float8_e4m3fn", head_dim=64, many=True),
    ],
    ids=lambda b: f"{b.q}-{b.kv}-{b.head_dim}-{b.group}-{'many' if b.many else 'one'}-sm{b.arch}",
)
def test_kernel_compiles_without_framework_headers(build: Build, tmp_path: object) -> None:
    source = tmp_path / "instance.cu"
    source.write_text('#include "instance.cuh"\n')
    cmd = [find_nvcc(), *build.flags(), "-Xptxas", "-v", f"-I{CSRC}", "-cubin", "-o", str(tmp_path / "out.cubin"), str(source)]
    done = subprocess.run(cmd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    assert " registers" in done.stderr
