"""Indexer scores, selections and candidate blocks against recorded results and a plain Python selection."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference import formats, indexer, quant
from thalweg.kernels.reference.indexer import (
    block_scores,
    compact_lengths,
    indexer_scores,
    restore_indices,
    restrict_to_blocks,
    select_candidate_blocks,
    select_topk,
)
from thalweg.kernels.testing import RecordLoader, VectorLoader, bf16_ulps


@pytest.mark.parametrize("carrier", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["indexer_a", "indexer_b"])
def test_a_recorded_indexer_pass_is_reproduced(name: str, carrier: torch.dtype, vectors: VectorLoader) -> None:
    d = vectors(f"model/{name}")
    rows, heads, _ = d["q"].shape
    packed, scales = quant.quantize_mxfp4(d["q"])
    assert torch.equal(packed.view(rows * heads, -1), d["q_packed"])
    assert torch.equal(scales.view(rows * heads, -1), d["q_scale_exp"])
    packed, scales = quant.quantize_mxfp4(d["k"])
    assert torch.equal(packed, d["k_packed"])
    assert torch.equal(scales, d["k_scale_exp"])

    queries, keys = quant.fake_mxfp4(d["q"]).to(carrier), quant.fake_mxfp4(d["k"]).to(carrier)
    visible, size = d["valid_len"], int(d["block_size"])
    scores = indexer_scores(queries, d["weights"].to(carrier), keys, torch.zeros_like(visible), visible)
    width = scores.shape[1]
    seen = torch.arange(width) < visible.unsqueeze(-1)
    assert torch.allclose(scores.float()[seen], d["logits_fp32"][:, :width][seen], rtol=1e-5, atol=1e-5)
    assert bf16_ulps(scores[seen], d["logits"][:, :width][seen]) <= 1
    assert bool((scores[~seen] == -torch.inf).all())

    logits = d["logits"][:, :width].to(carrier)  # the selections belong to the recorded bits
    best = block_scores(logits, visible, size)
    blocks = select_candidate_blocks(best, visible, size, int(d["topk_blocks"]))
    known = torch.arange(best.shape[1]) < d["valid_blocks"].unsqueeze(-1)
    recorded_best = d["block_scores"][:, : best.shape[1]]
    recorded_best = torch.where(recorded_best > 1e29, torch.inf, recorded_best)
    assert torch.equal(best.float()[known], recorded_best[known])
    assert bool((best[~known] == -torch.inf).all())
    assert torch.equal(blocks, d["candidate_blocks"])
    assert torch.equal(select_topk(logits, visible, int(d["topk"])), d["direct_topk"])

    restricted = restrict_to_blocks(logits, blocks, size)
    assert torch.equal(select_topk(restricted, visible, int(d["topk"])), d["restored_topk"])
    assert torch.equal(compact_lengths(blocks, visible, size), d["compact_len"])
    assert torch.equal(restore_indices(d["compact_topk"], blocks, size), d["restored_topk"])


@pytest.mark.parametrize("value_format", ["e4m3", "e2m1"])
def test_recorded_scores_of_quantised_keys_are_reproduced(value_format: str, vectors: VectorLoader) -> None:
    d = vectors("kernels/mqa_logits")

    def values(name: str) -> torch.Tensor:
        codes = d[f"{value_format}_{name}"].view(torch.uint8)
        raw = (
            formats.decode_e4m3(codes) if value_format == "e4m3" else formats.decode_e2m1(formats.unpack_nibbles(codes))
        )
        return raw.double() * d[f"{value_format}_{name}sf"].double().repeat_interleave(32, -1)

    scores = indexer_scores(values("q"), d["weights"].double(), values("k"), d["ks"], d["ke"])
    expected = d[f"{value_format}_logits_f64_compact"]
    assert torch.allclose(scores, expected[:, : scores.shape[1]], rtol=1e-12, atol=1e-9)


def test_recorded_candidate_blocks_of_the_device_form_are_reproduced(vectors: VectorLoader) -> None:
    d = vectors("kernels/candidate_blocks")
    size, visible = int(d["block_size"]), d["valid_lens"]
    best = block_scores(d["logits"], visible, size)
    known = torch.arange(best.shape[1]) < d["valid_blocks"].unsqueeze(-1)
    assert torch.equal(best[known], d["block_scores"][known])
    chosen = select_candidate_blocks(best, visible, size, d["candidate_blocks"].shape[1])
    for mine, theirs in zip(chosen.tolist(), d["candidate_blocks"].tolist(), strict=True):
        assert set(mine) == set(theirs)
    assert torch.equal(compact_lengths(d["candidate_blocks"], visible, size), d["compact_lens"])
    restored = restore_indices(d["compact_indices"], d["candidate_blocks"], size)
    assert torch.equal(restored, d["restored"])
    moved = restore_indices(d["compact_indices"], d["candidate_blocks"], size, d["offset"])
    assert torch.equal(moved, d["restored_with_offset"])


def test_recorded_candidate_blocks_of_the_cache_are_reproduced(recorded: RecordLoader) -> None:
    d = {
        key: torch.tensor(value) if isinstance(value, list) else value
        for key, value in recorded("cache/candidate_blocks").items()
    }
    logits = d["logits_bf16_bits"].to(torch.int16).view(torch.bfloat16)
    expected = d["scores_bf16_bits"].to(torch.int16).view(torch.bfloat16)
    assert torch.equal(block_scores(logits, d["valid_lens"], d["block_size"]), expected)
    assert torch.equal(
        compact_lengths(d["candidate_blocks"], d["valid_lens"], d["block_size"]).long(), d["compact_lens"]
    )
    restored = restore_indices(d["compact_indices"], d["candidate_blocks"], d["block_size"], d["offset"])
    assert torch.equal(restored.long(), d["restored"])


def test_recorded_top_k_values_are_reproduced(vectors: VectorLoader) -> None:
    d = vectors("kernels/topk_values")
    ids = select_topk(d["x"], d["end"], int(d["k"]))
    for row, (picked, end) in enumerate(zip(ids, d["end"].tolist(), strict=True)):
        kept = picked[picked >= 0]
        assert len(kept) == min(end, int(d["k"]))
        assert len(set(kept.tolist())) == len(kept)
        assert bool((kept < end).all())
        values = d["x"][row, kept.long()].sort(descending=True).values
        assert torch.equal(values, d["sorted_values"][row, : len(kept)])


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 40), st.integers(0, 12), st.integers(0, 10**6))
def test_selection_equals_a_sort_by_score_then_id(entries: int, k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-2, 3, (5, entries), generator=generator).double()
    visible = torch.randint(0, entries + 1, (5,), generator=generator)
    for row, count, got in zip(
        scores.tolist(), visible.tolist(), select_topk(scores, visible, k).tolist(), strict=True
    ):
        best = sorted(sorted(range(count), key=lambda i: (-row[i], i))[:k])
        assert got == best + [-1] * (k - len(best))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 50), st.sampled_from([1, 3, 8]), st.integers(1, 5), st.integers(0, 10**6))
def test_candidate_blocks_keep_the_last_one_and_restrict_the_selection(
    entries: int, size: int, count: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 4, (4, entries), generator=generator).double()
    visible = torch.randint(0, entries + 1, (4,), generator=generator)
    blocks = select_candidate_blocks(block_scores(scores, visible, size), visible, size, count)
    picked = select_topk(restrict_to_blocks(scores, blocks, size), visible, entries)
    for row in range(4):
        seen = int(visible[row])
        listed = [block for block in blocks[row].tolist() if block >= 0]
        assert listed == sorted(set(listed))
        assert len(listed) == min(count, -(-seen // size))
        if seen:
            assert (seen - 1) // size in listed
        inside = [entry for entry in range(seen) if entry // size in listed]
        assert [entry for entry in picked[row].tolist() if entry >= 0] == inside


def test_scores_read_each_querys_own_range_of_the_keys() -> None:
    generator = torch.Generator().manual_seed(0)
    q, weights = torch.randn(4, 3, 8, generator=generator), torch.randn(4, 3, generator=generator)
    keys = torch.randn(60, 8, generator=generator)
    begin, end = torch.tensor([0, 10, 59, 7]), torch.tensor([33, 12, 59, 60])
    scores = indexer_scores(q, weights, keys, begin, end)
    assert scores.shape == (4, 53)
    for i in range(4):
        own = keys[begin[i] : end[i]]
        expected = (weights[i] * torch.relu(own @ q[i].t())).sum(-1)
        assert torch.allclose(scores[i, : len(own)], expected, atol=1e-5)
        assert bool((scores[i, len(own) :] == -torch.inf).all())


def test_no_queries_and_no_keys_have_no_scores() -> None:
    none = torch.zeros(0, dtype=torch.int32)
    assert indexer_scores(torch.ones(0, 2, 8), torch.ones(0, 2), torch.ones(5, 8), none, none).shape == (0, 0)
    zero = torch.zeros(3, dtype=torch.int32)
    scores = indexer_scores(torch.ones(3, 2, 8), torch.ones(3, 2), torch.ones(0, 8), zero, zero)
    assert scores.shape == (3, 0)
    assert select_topk(scores, zero, 4).tolist() == [[-1] * 4] * 3
    assert select_candidate_blocks(block_scores(scores, zero, 8), zero, 8, 2).tolist() == [[-1, -1]] * 3


def test_bad_arguments_are_refused_by_name() -> None:
    q, weights, keys = torch.ones(2, 3, 8), torch.ones(2, 3), torch.ones(9, 8)
    begin, end = torch.tensor([0, 0]), torch.tensor([4, 9])
    with pytest.raises(ConfigError, match=r"weights has shape \[2, 4\]; \[2, 3\] is expected"):
        indexer_scores(q, torch.ones(2, 4), keys, begin, end)
    with pytest.raises(ConfigError, match=r"keys has shape \[9, 7\]; \[M, 8\] is expected"):
        indexer_scores(q, weights, torch.ones(9, 7), begin, end)
    with pytest.raises(ConfigError, match=r"end reaches 10; there are 9 keys"):
        indexer_scores(q, weights, keys, begin, end + 1)
    with pytest.raises(ConfigError, match="k is -1; an integer from 0 to 2147483647 is accepted"):
        select_topk(torch.ones(2, 5), end, -1)
    with pytest.raises(ConfigError, match="block_size is 0; an integer from 1 to"):
        block_scores(torch.ones(2, 5), end, 0)
    with pytest.raises(ConfigError, match=r"visible has shape \[3\]; \[2\] is expected"):
        select_topk(torch.ones(2, 5), torch.ones(3), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("groups", [1, 4, 8, 20, 32])
def test_queries_of_one_sequence_and_of_many_get_the_same_bits(groups: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(groups)
    q = torch.randn(40, groups, 32, dtype=torch.float64, generator=generator).to(dtype)
    weights = torch.randn(40, groups, dtype=torch.float64, generator=generator).to(dtype)
    keys = torch.randn(500, 32, dtype=torch.float64, generator=generator).to(dtype)
    begin = torch.full((40,), 150)
    end = begin + torch.arange(40) * 8
    together = indexer_scores(q, weights, keys, begin, end)
    for i in range(1, 40):
        alone = indexer_scores(q[i : i + 1], weights[i : i + 1], keys, begin[i : i + 1], end[i : i + 1])
        assert torch.equal(alone[0], together[i, : alone.shape[1]])


def test_slices_of_queries_give_the_bits_of_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)
    q, weights = torch.randn(30, 8, 16, generator=generator), torch.randn(30, 8, generator=generator)
    keys = torch.randn(200, 16, generator=generator)
    cases = [torch.zeros(30).long(), torch.arange(30)]
    whole = [indexer_scores(q, weights, keys, begin, begin + 100) for begin in cases]
    monkeypatch.setattr(indexer, "CHUNK_BYTES", 3 * 128 * 24 * 4)
    assert all(
        torch.equal(indexer_scores(q, weights, keys, begin, begin + 100), expected)
        for begin, expected in zip(cases, whole, strict=True)
    )
