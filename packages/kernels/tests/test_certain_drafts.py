"""Drafts that nobody drew: rejection treats each as drawn from a distribution that holds nothing else."""

from __future__ import annotations

import torch

from thalweg.kernels import Verification
from thalweg.kernels.reference.verification import verify_drafts
from thalweg.kernels.reference.vocabulary_rows import log_softmax

VOCAB, DRAFTS, SEQUENCES = 7, 2, 3000


def verify(pool: torch.Tensor, is_certain: torch.Tensor | None, token_ids: torch.Tensor) -> Verification:
    """Every sequence feeds an anchor and two drafts, and reads slot 1."""
    rows = SEQUENCES * (1 + DRAFTS)
    logits = torch.randn(1 + DRAFTS, VOCAB, generator=torch.Generator().manual_seed(5)).repeat(SEQUENCES, 1)
    return verify_drafts(
        logits.argmax(-1).int(),
        token_ids,
        torch.full((SEQUENCES,), 1 + DRAFTS, dtype=torch.int32),
        torch.zeros(rows, dtype=torch.bool),
        log_softmax(logits),
        torch.arange(rows),
        torch.arange(rows) % (1 + DRAFTS),
        pool,
        torch.ones(SEQUENCES, dtype=torch.int32),
        is_certain=is_certain,
    )


def test_a_certain_draft_equals_one_drawn_from_a_distribution_of_one_token() -> None:
    token_ids = torch.tensor([0, 3, 5]).repeat(SEQUENCES)
    one_token = torch.full((2, DRAFTS, VOCAB), -torch.inf)
    one_token[1, [0, 1], [3, 5]] = 0
    garbage = torch.full_like(one_token, -1.0)
    certain = torch.tensor([[False, False], [True, True]])
    expected, found = verify(one_token, None, token_ids), verify(garbage, certain, token_ids)
    for name in Verification.__slots__:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert 0 < expected.num_accepted.float().mean() < DRAFTS


def test_one_certain_draft_leaves_the_others_to_the_pool() -> None:
    token_ids = torch.tensor([0, 3, 5]).repeat(SEQUENCES)
    pool = log_softmax(torch.randn(2, DRAFTS, VOCAB, generator=torch.Generator().manual_seed(6)))
    first = verify(pool, torch.tensor([[False, False], [True, False]]), token_ids)
    neither = verify(pool, torch.zeros(2, DRAFTS, dtype=torch.bool), token_ids)
    rows = torch.arange(SEQUENCES) * (1 + DRAFTS)
    assert torch.equal(first.accept_probs[rows + 1], neither.accept_probs[rows + 1])
    assert not torch.equal(first.accept_probs[rows], neither.accept_probs[rows])


def test_a_certain_draft_that_is_no_token_is_refused_and_takes_nothing_off_the_target() -> None:
    token_ids = torch.tensor([0, -1, 5]).repeat(SEQUENCES)
    pool = torch.zeros(2, DRAFTS, VOCAB)
    found = verify(pool, torch.ones(2, DRAFTS, dtype=torch.bool), token_ids)
    assert not found.num_accepted.any()
    assert found.token_ids[:: 1 + DRAFTS].unique().numel() == VOCAB
