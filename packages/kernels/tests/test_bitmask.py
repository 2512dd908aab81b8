"""Bitmasks over the vocabulary: recorded results and a plain loop."""

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


@pytest.mark.parametrize("place", range(4))
def test_recorded_masks_of_each_row_of_a_sequence_are_applied(place: int, vectors: VectorLoader) -> None:
    d = vectors("sampling/bitmask")
    has_grammar = torch.isin(torch.arange(len(d["ftp"])), d["indices"])
    rows = torch.where(has_grammar & (d["seqlen_q"] > place), d["ftp"] + place, -1)
    logits = d["logits"].clone()
    ops.apply_token_bitmask(logits, d["bitmask"], rows)
    assert torch.equal(logits, d[f"out_step{place}"])


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 100), st.integers(0, 4))
def test_a_mask_is_applied_as_by_a_loop(seed: int, words: int, vocabulary: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.standard_normal((4, vocabulary)).astype(np.float32))
    bitmask = rng.integers(-(2**31), 2**31, (count, words)).astype(np.int32)
    rows = rng.permutation(4)[:count] - rng.integers(0, 2) * 5
    expected = logits.clone()
    for mask, row in zip(bitmask, rows.tolist(), strict=True):
        for token in range(min(vocabulary, 32 * words)) if row >= 0 else ():
            if not int(mask[token // 32]) >> token % 32 & 1:
                expected[row, token] = -torch.inf
    ops.apply_token_bitmask(logits, torch.from_numpy(bitmask), torch.from_numpy(rows))
    assert torch.equal(logits, expected)


def test_bad_masks_are_named() -> None:
    logits, rows = torch.zeros(2, 40), torch.tensor([0])
    with pytest.raises(ConfigError, match=r"bitmask has shape \[2\]; \[M, words\] is expected"):
        ops.apply_token_bitmask(logits, torch.zeros(2, dtype=torch.int32), rows)
    with pytest.raises(ConfigError, match=r"rows has shape \[1\]; \[2\] is expected"):
        ops.apply_token_bitmask(logits, torch.zeros(2, 2, dtype=torch.int32), rows)
    with pytest.raises(ConfigError, match=r"bitmask has dtype torch\.int64; int32 is required"):
        ops.apply_token_bitmask(logits, torch.zeros(1, 2, dtype=torch.int64), rows)
