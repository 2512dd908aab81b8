"""The law of drawn tokens: chi-square tests with fixed seeds, at the 99.9 % point."""

from __future__ import annotations

import pytest
import torch
from kernels_testing.plain_filters import chi_square, kept_ids, probabilities

from thalweg.kernels import bind

ops = bind("cpu", batch_invariant=True)
COUNT = 200_000
VOCABULARY = 48
FILTERS = {
    "none": (1.0, -1, 0.0),
    "top-k": (1.0, 11, 0.0),
    "top-p": (0.9, -1, 0.0),
    "min-p": (1.0, -1, 0.04),
    "all": (0.93, 16, 0.03),
}


def skewed_logits() -> torch.Tensor:
    """[V] with ties and a token that cannot be drawn."""
    logits = 1.5 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(11))
    logits[10:14] = logits[20]
    logits[5] = -torch.inf
    return logits


@pytest.mark.parametrize("name", FILTERS)
def test_filtered_draws_follow_the_law(name: str) -> None:
    logits, (top_p, top_k, min_p) = skewed_logits(), FILTERS[name]
    expected = probabilities(logits.tolist(), top_p, top_k, min_p)
    assert sum(share > 0 for share in expected) < (VOCABULARY if name == "none" else VOCABULARY / 2)
    tokens = ops.sample_tokens(
        logits.expand(COUNT, -1),
        torch.ones(COUNT),
        torch.full((COUNT,), top_p),
        torch.full((COUNT,), top_k),
        torch.full((COUNT,), min_p),
        torch.full((COUNT,), 987654321),
        torch.arange(COUNT),
    )
    statistic, limit = chi_square(torch.bincount(tokens.long(), minlength=VOCABULARY).tolist(), expected)
    assert statistic < limit


def test_coupled_draws_with_filters_follow_the_law() -> None:
    logits, (top_p, top_k, min_p), count = skewed_logits(), FILTERS["all"], 50_000
    tokens = ops.coupled_tokens(
        logits.expand(count, -1),
        torch.ones(count),
        torch.full((count,), top_p),
        torch.full((count,), top_k),
        torch.full((count,), min_p),
        torch.arange(count),
        torch.full((count,), 12),
    )
    expected = probabilities(logits.tolist(), top_p, top_k, min_p)
    statistic, limit = chi_square(torch.bincount(tokens.long(), minlength=VOCABULARY).tolist(), expected)
    assert statistic < limit


def test_draws_from_a_whole_vocabulary_follow_the_law() -> None:
    vocabulary, count, bins = 129_280, 800, 40
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(5))
    weights = torch.softmax(logits.double(), -1)
    rows = torch.arange(count)
    off = torch.ones(count), torch.full((count,), -1), torch.zeros(count)
    tokens = ops.sample_tokens(logits.expand(count, -1), torch.ones(count), *off, rows, rows)
    bin_of = torch.arange(vocabulary) * bins // vocabulary
    expected = torch.zeros(bins, dtype=torch.float64).index_add_(0, bin_of, weights)
    statistic, limit = chi_square(torch.bincount(bin_of[tokens.long()], minlength=bins).tolist(), expected.tolist())
    assert statistic < limit


def test_filtered_draws_from_a_whole_vocabulary_follow_the_law() -> None:
    vocabulary, count = 129_280, 600
    logits = 3 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(6))
    logits[[7, 70_000, 129_000]] = 14.0
    kept = kept_ids(sorted(logits.tolist(), reverse=True)[:100], 1.0, 9, 0.05)
    rows = torch.arange(count)
    filters = torch.full((count,), 0.999999), torch.full((count,), 9), torch.full((count,), 0.05)
    tokens = ops.sample_tokens(logits.expand(count, -1), torch.ones(count), *filters, rows, rows)
    ids = torch.topk(logits, len(kept)).indices.sort().values
    expected = torch.softmax(logits[ids].double(), -1)
    assert set(tokens.tolist()) <= set(ids.tolist())
    observed = torch.bincount(torch.searchsorted(ids, tokens.long()), minlength=len(kept))
    statistic, limit = chi_square(observed.tolist(), expected.tolist())
    assert statistic < limit
