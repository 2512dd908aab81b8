"""Distributions over K listed tokens: recorded results and a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thalweg.interfaces import ConfigError
from thalweg.kernels import bind
from thalweg.kernels.testing import VectorLoader

ops = bind("cpu", batch_invariant=True)


def test_recorded_lists_are_aligned(vectors: VectorLoader) -> None:
    d = vectors("sampling/forced_topk")
    aligned, local_ids = ops.align_draft_topk(
        d["draft_topk_index"], d["draft_topk_logprobs"], d["draft_ids"], d["target_topk_index"], d["read_rows"]
    )
    assert torch.equal(aligned, d["aligned_logprobs"])
    assert torch.equal(local_ids, d["draft_local_ids"])
    assert d["identity_rows"].tolist() == list(range(len(aligned))), "row i is read where it was written"
    found = ops.lookup_by_key(d["target_topk_index"], aligned, d["lookup_query"][:, 0])
    assert torch.equal(found, d["lookup_by_key"])
    assert int(d["target_topk_index"].max()) < int(d["vocab"])


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 6))
def test_lists_are_aligned_as_by_a_loop(seed: int, num_draft_ids: int, num_target_ids: int) -> None:
    rng = np.random.default_rng(seed)
    draft_ids = np.stack([rng.permutation(8)[:num_draft_ids] for _ in range(3)])
    target_ids = np.stack([rng.permutation(8)[:num_target_ids] for _ in range(5)])
    logprobs = rng.standard_normal((3, num_draft_ids)).astype(np.float32)
    drafts, rows, wanted = rng.integers(-1, 8, 3), rng.integers(0, 3, 5), rng.integers(-1, 8, 5)
    lists = [dict(zip(ids, values, strict=True)) for ids, values in zip(draft_ids, logprobs, strict=True)]
    expected = [[lists[row].get(token, -np.inf) for token in ids] for row, ids in zip(rows, target_ids, strict=True)]
    places = [{token: place for place, token in enumerate(ids)} for ids in target_ids]
    aligned, local_ids = ops.align_draft_topk(*map(torch.from_numpy, (draft_ids, logprobs, drafts, target_ids, rows)))
    assert torch.equal(aligned, torch.tensor(expected, dtype=torch.float32))
    assert local_ids.tolist() == [place.get(drafts[row], -1) for row, place in zip(rows, places, strict=True)]
    found = ops.lookup_by_key(torch.from_numpy(target_ids), aligned, torch.from_numpy(wanted))
    sought = [
        row[place[token]] if token in place else -np.inf
        for row, place, token in zip(expected, places, wanted, strict=True)
    ]
    assert torch.equal(found, torch.tensor(sought, dtype=torch.float32))


def test_bad_input_of_lists_is_named() -> None:
    ids, values, one = torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, 3), torch.zeros(1, dtype=torch.int32)
    two = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ConfigError, match=r"draft_topk_logprobs has shape \[2, 2\]; \[2, 3\] is expected"):
        ops.align_draft_topk(ids, values[:, :2], two, ids, two)
    with pytest.raises(ConfigError, match=r"draft_ids has shape \[1\]; \[2\] is expected"):
        ops.align_draft_topk(ids, values, one, ids, two)
    with pytest.raises(ConfigError, match=r"draft_rows has shape \[1\]; \[2\] is expected"):
        ops.align_draft_topk(ids, values, two, ids, one)
    with pytest.raises(ConfigError, match=r"values has shape \[2, 2\]; \[2, 3\] is expected"):
        ops.lookup_by_key(ids, values[:, :2], two)
    with pytest.raises(ConfigError, match=r"wanted has shape \[1\]; \[2\] is expected"):
        ops.lookup_by_key(ids, values, one)
    with pytest.raises(ConfigError, match="keys have no columns"):
        ops.lookup_by_key(ids[:, :0], values[:, :0], two)
