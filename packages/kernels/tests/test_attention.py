"""Sparse attention against recorded results, a dense softmax, and its corner cases."""

from __future__ import annotations

import pytest
import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference import attention
from thalweg.kernels.reference.attention import sparse_attention, sparse_attention_stats
from thalweg.kernels.testing import VectorLoader


@pytest.mark.parametrize("carrier", [torch.float32, torch.float64])
def test_recorded_attention_is_reproduced(carrier: torch.dtype, vectors: VectorLoader) -> None:
    d = vectors("kernels/sparse_attention")
    q, keys, scale = d["q"].to(carrier), d["kv"].to(carrier), float(d["scale"])
    within = torch.arange(d["indices"].shape[1]) < d["topk_length"].unsqueeze(-1)
    indices = torch.where(within, d["indices"], -1)
    heads = d["heads"]
    out, lse, peak = sparse_attention_stats(q, keys, indices, d["sink"], scale)
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    assert torch.allclose(out[:, heads].float(), d["out_sink_f32"], **tolerance)
    assert torch.allclose(lse.float(), d["lse"], **tolerance)
    assert torch.allclose(peak.float(), d["max_logits"], **tolerance)
    out, lse, _ = sparse_attention_stats(q, keys, indices, None, scale)
    assert torch.allclose(out[:, heads].float(), d["out_nosink_f32"], **tolerance)
    assert torch.allclose(lse.float(), d["lse"], **tolerance)


def dense(q: torch.Tensor, keys: torch.Tensor, indices: torch.Tensor, sink: torch.Tensor, scale: float) -> torch.Tensor:
    """Row by row, with the sink as one more logit whose value is zero."""
    rows = []
    for query, index in zip(q, indices, strict=True):
        own = keys[index[index >= 0].long()]
        logits = torch.cat((query @ own.t() * scale, sink.unsqueeze(-1)), -1)
        rows.append(torch.softmax(logits, -1)[:, :-1] @ own)
    return torch.stack(rows)


def case(rows: int = 6, heads: int = 3, dim: int = 16, width: int = 11, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(rows, heads, dim, dtype=torch.float64, generator=generator)
    keys = torch.randn(40, dim, dtype=torch.float64, generator=generator)
    indices = torch.randint(-15, 40, (rows, width), generator=generator).clamp(min=-1)
    sink = torch.randn(heads, dtype=torch.float64, generator=generator)
    return q, keys, indices, sink


def test_it_equals_a_softmax_with_one_more_logit() -> None:
    q, keys, indices, sink = case()
    assert torch.allclose(sparse_attention(q, keys, indices, sink, 0.25), dense(q, keys, indices, sink, 0.25))


def test_slices_of_rows_give_the_bits_of_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    q, keys, indices, sink = case(rows=13)
    whole = sparse_attention_stats(q, keys, indices, sink, 0.25)
    monkeypatch.setattr(attention, "GATHER_BYTES", 3 * 11 * 16 * 8)
    sliced = sparse_attention_stats(q, keys, indices, sink, 0.25)
    assert all(torch.equal(a, b) for a, b in zip(whole, sliced, strict=True))


def test_a_key_listed_twice_counts_twice() -> None:
    q, keys, _, sink = case(rows=1)
    twice = sparse_attention(q, keys, torch.tensor([[3, 5, 5]]), sink, 0.25)
    assert torch.allclose(twice, dense(q, keys, torch.tensor([[3, 5, 5]]), sink, 0.25))


def test_indices_outside_the_keys_are_ignored() -> None:
    q, keys, _, sink = case(rows=1)
    inside = sparse_attention(q, keys, torch.tensor([[3, -1, 7, -1]]), sink, 0.25)
    assert torch.equal(sparse_attention(q, keys, torch.tensor([[3, 40, 7, -5]]), sink, 0.25), inside)


def test_unlisted_keys_never_matter_even_when_they_are_nan() -> None:
    q, keys, indices, sink = case()
    indices[indices == 0] = 1
    unused = sorted(set(range(40)) - set(indices.flatten().tolist()))
    assert unused[0] == 0
    spoiled = keys.clone()
    spoiled[unused] = torch.nan
    expected = sparse_attention(q, keys, indices, sink, 0.25)
    assert torch.equal(sparse_attention(q, spoiled, indices, sink, 0.25), expected)


def test_a_row_never_sees_the_keys_of_another() -> None:
    q, keys, indices, sink = case(rows=3)
    indices[0] = torch.tensor([1, -1, 2, -1, 3, -1, 4, -1, 5, -1, 6])
    indices[1] = -1
    spoiled = keys.clone()
    spoiled[[0, *range(7, 40)]] = torch.inf
    expected = sparse_attention(q, keys, indices, sink, 0.25)
    got = sparse_attention(q, spoiled, indices, sink, 0.25)
    assert torch.equal(got[:2], expected[:2])


def test_a_row_without_keys_is_zero() -> None:
    q, keys, indices, sink = case(rows=2)
    indices[1] = -1
    for some_sink in (sink, None):
        out, lse, peak = sparse_attention_stats(q, keys, indices, some_sink, 0.25)
        assert bool((out[1] == 0).all())
        assert bool((lse[1] == torch.inf).all())
        assert bool((peak[1] == -torch.inf).all())
    empty = sparse_attention(q, keys[:0], torch.full((2, 4), -1), sink, 0.25)
    assert bool((empty == 0).all())
    assert sparse_attention(q[:0], keys, indices[:0], sink, 0.25).shape == (0, 3, 16)


def test_an_infinite_sink_is_no_sink_or_takes_everything() -> None:
    q, keys, indices, sink = case()
    without = sparse_attention(q, keys, indices, None, 0.25)
    assert torch.allclose(sparse_attention(q, keys, indices, torch.full_like(sink, -torch.inf), 0.25), without)
    assert bool((sparse_attention(q, keys, indices, torch.full_like(sink, torch.inf), 0.25) == 0).all())


def test_huge_sinks_and_logits_do_not_overflow() -> None:
    q, keys, indices, _ = case()
    out = sparse_attention(q.float() * 1e4, keys.float(), indices, torch.tensor([2e4, -2e4, 0.0]), 0.25)
    assert bool(torch.isfinite(out).all())


def test_bfloat16_is_computed_in_float32_and_rounded_once() -> None:
    q, keys, indices, sink = (t.bfloat16() if t.is_floating_point() else t for t in case())
    narrow = sparse_attention(q, keys, indices, sink, 0.25)
    assert torch.equal(narrow, sparse_attention(q.float(), keys.float(), indices, sink.float(), 0.25).bfloat16())


@pytest.mark.parametrize("rows", [3, 40])
def test_it_is_differentiable_in_queries_keys_and_sink(rows: int) -> None:
    q, keys, indices, sink = case(rows=rows, heads=2, dim=3, width=5)
    indices[0] = -1
    inputs = tuple(t.requires_grad_() for t in (q, keys, sink))
    assert torch.autograd.gradcheck(lambda q, keys, sink: sparse_attention(q, keys, indices, sink, 0.5), inputs)


def test_bad_arguments_are_refused_by_name() -> None:
    q, keys, indices, sink = case()
    with pytest.raises(ConfigError, match=r"keys has shape \[40, 15\]; \[S, 16\] is expected"):
        sparse_attention(q, keys[:, :15], indices, sink, 0.25)
    with pytest.raises(ConfigError, match=r"indices has shape \[5, 11\]; \[6, K\] is expected"):
        sparse_attention(q, keys, indices[:5], sink, 0.25)
    with pytest.raises(ConfigError, match=r"sink has shape \[4\]; \[3\] is expected"):
        sparse_attention(q, keys, indices, torch.zeros(4), 0.25)
    with pytest.raises(ConfigError, match=r"indices has dtype torch\.float64; int32 or int64 is required"):
        sparse_attention(q, keys, indices.double(), sink, 0.25)
    with pytest.raises(ConfigError, match=r"keys have dtype torch.float32; q has torch.float64"):
        sparse_attention(q, keys.float(), indices, sink, 0.25)
