"""A judged row: the law of what it yields, what its probability of acceptance means, and where the rule has an edge."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernels_testing.distributions import random_logprobs
from torch import Tensor

from thalweg.kernels.reference.random_numbers import uniform
from thalweg.kernels.reference.sampling import draw
from thalweg.kernels.reference.verification import ALPHA, Verdicts, judge_drafts, verify_drafts
from thalweg.kernels.reference.vocabulary_rows import argmax_lowest
from thalweg.kernels.testing import rows_that_depend_on_the_batch, same_bits


def judge(logprobs: Tensor, draft_ids: Tensor, draft_logprobs: Tensor, **rest: Tensor) -> Verdicts:
    """Every row judges a draft that was drawn from the row of the same number, with a random number of its own."""
    rows = torch.arange(logprobs.shape[0])
    arguments = {
        "has_draft": torch.ones_like(rows, dtype=torch.bool),
        "draft_rows": rows,
        "seeds": rows * 7919,
        "positions": rows,
    }
    return judge_drafts(logprobs=logprobs, draft_ids=draft_ids, draft_logprobs=draft_logprobs, **{**arguments, **rest})


LAWS = {
    "near": (random_logprobs(1, 6, seed=1, scale=0.7), random_logprobs(1, 6, seed=2, scale=0.7)),
    "far": (random_logprobs(1, 6, seed=3), random_logprobs(1, 6, seed=4)),
    "both filtered": (random_logprobs(1, 6, seed=5, filtered=0.4), random_logprobs(1, 6, seed=9, filtered=0.4)),
    "nothing shared": (
        torch.log(torch.tensor([[0.5, 0.3, 0.2, 0, 0, 0]])),
        torch.log(torch.tensor([[0, 0, 0, 0.1, 0.9, 0]])),
    ),
    "equal": (random_logprobs(1, 6, seed=6), random_logprobs(1, 6, seed=6)),
}


@pytest.mark.parametrize("law", LAWS)
def test_a_judged_row_yields_tokens_of_the_targets_distribution(law: str) -> None:
    target, drafter = LAWS[law]
    count = 40_000
    seeds, positions = torch.arange(count) * 1000003, torch.full((count,), 77)
    drafts = draw(drafter.exp().expand(count, -1), uniform(seeds + 1000000007, positions))
    got = judge(target.expand(count, -1), drafts, drafter.expand(count, -1), seeds=seeds, positions=positions)
    expected = target[0].exp().double() * count
    seen = torch.bincount(got.token_ids.long(), minlength=6).double()
    is_possible = expected > 0
    assert seen[~is_possible].sum() == 0
    degrees = int(is_possible.sum()) - 1
    chi_square = float(((seen - expected) ** 2 / expected)[is_possible].sum())
    assert chi_square < [0, 10.83, 13.82, 16.27, 18.47, 20.52][degrees]  # 99.9 %
    # accept_probs, the same in every row, say how often a draft holds.
    share = float(got.is_accepted.float().mean())
    probability = float(got.accept_probs[0])
    assert share == pytest.approx(probability, abs=4 * math.sqrt(0.25 / count) + 1e-4)
    assert same_bits(got.accept_probs, got.accept_probs[:1].expand(count).contiguous())


def test_a_draft_of_the_targets_own_distribution_always_holds() -> None:
    logprobs = random_logprobs(4000, 9, filtered=0.3)
    drafts = draw(logprobs.exp(), uniform(torch.arange(4000), torch.arange(4000)))
    got = judge(logprobs, drafts, logprobs)
    assert bool(got.is_accepted.all())
    assert torch.equal(got.token_ids, drafts)
    assert torch.allclose(got.accept_probs, torch.tensor(ALPHA), rtol=0, atol=1e-6)


@given(st.integers(0, 2**31), st.floats(0, 0.5), st.floats(0.1, 4))
def test_accept_probs_are_the_mass_that_target_and_drafter_share(seed: int, filtered: float, scale: float) -> None:
    target = random_logprobs(8, 7, seed=seed, scale=scale, filtered=filtered)
    drafter = random_logprobs(8, 7, seed=seed + 1, scale=scale, filtered=filtered)
    got = judge(target, torch.zeros(8, dtype=torch.int64), drafter).accept_probs.double()
    p, d = target.double().exp(), drafter.double().exp()
    assert torch.allclose(got, torch.minimum(p, ALPHA * d).sum(-1), rtol=0, atol=1e-6)
    distance = (p - d).abs().sum(-1) / 2
    assert bool(((got - (1 - distance)).abs() <= 1 - ALPHA + 1e-6).all())


@given(st.integers(0, 2**31), st.floats(0.1, 6))
def test_the_bias_that_keeps_residuals_from_being_empty_is_bounded(seed: int, scale: float) -> None:
    p = random_logprobs(20, 7, seed=seed, scale=scale).double().exp().numpy()
    d = random_logprobs(20, 7, seed=seed + 1, scale=scale).double().exp().numpy()
    p, d = p / p.sum(-1, keepdims=True), d / d.sum(-1, keepdims=True)
    accepted = np.minimum(p, d)
    residual = np.maximum(p - ALPHA * d, 0)
    yielded = accepted + (1 - accepted.sum(-1, keepdims=True)) * residual / residual.sum(-1, keepdims=True)
    epsilon = 5.001e-5
    assert (yielded <= (1 + epsilon) * p + 1e-12).all()
    assert (yielded >= p - epsilon / (1 + epsilon) - 1e-12).all()


def test_a_draft_that_is_no_token_is_refused_and_replaced_by_what_the_drafter_leaves() -> None:
    target = torch.log(torch.tensor([[0.5, 0.3, 0.2]])).expand(500, -1)
    drafter = torch.log(torch.tensor([[0.6, 0.1, 0.3]])).expand(500, -1)
    for draft in (-1, -7, 3):
        got = judge(target, torch.full((500,), draft), drafter)
        assert not got.is_accepted.any()
        assert set(got.token_ids.tolist()) == {1}, "only token 1 is likelier than the drafter has it"
        assert torch.isinf(got.draft_logprobs).all()
        assert float(got.accept_probs[0]) == pytest.approx(0.5 + 0.1 + 0.2, abs=1e-4)


def test_a_draft_that_the_target_excludes_never_holds_and_one_the_drafter_excludes_does() -> None:
    target = torch.log(torch.tensor([[0.7, 0.3, 0.0]])).expand(300, -1)
    drafter = torch.log(torch.tensor([[0.0, 0.5, 0.5]])).expand(300, -1)
    excluded = judge(target, torch.full((300,), 2), drafter)
    assert not excluded.is_accepted.any()
    assert set(excluded.token_ids.tolist()) == {0}
    assert judge(target, torch.zeros(300, dtype=torch.int64), drafter).is_accepted.all()
    both = torch.log(torch.tensor([[0.7, 0.3, 0.0]])).expand(300, -1)
    assert not judge(target, torch.full((300,), 2), both).is_accepted.any()


def test_an_empty_residual_yields_nothing_by_itself_and_the_lowest_best_id_in_a_step() -> None:
    target = torch.log(torch.tensor([[0.2, 0.4, 0.4]]))
    too_much = torch.full((1, 3), 1.0)
    alone = judge(target, torch.tensor([-1]), too_much)
    assert (alone.token_ids.tolist(), alone.is_accepted.tolist(), alone.accept_probs.tolist()) == ([-1], [False], [1])
    step = verify_drafts(
        argmax_lowest(target).repeat(2),
        torch.tensor([0, -1]),
        torch.tensor([2]),
        torch.zeros(2, dtype=torch.bool),
        target.repeat(2, 1),
        torch.tensor([4, 4]),
        torch.tensor([0, 1]),
        too_much[None],
        torch.tensor([0]),
    )
    assert (step.token_ids[0], step.is_accepted[0], step.num_accepted[0]) == (1, False, 0)


def test_a_verdict_is_the_same_alone_and_in_any_batch() -> None:
    rows, vocabulary = 33, 900
    target, drafter = random_logprobs(rows, vocabulary, seed=1), random_logprobs(rows, vocabulary, seed=2)
    drafts = draw(drafter.exp(), uniform(torch.arange(rows), torch.arange(rows)))
    has_draft, is_stored = torch.arange(rows) % 4 < 3, torch.arange(rows) % 5 > 0
    draft_rows = torch.where(is_stored, torch.arange(rows), -1)

    def compute(ids: Tensor) -> tuple[Tensor, ...]:
        got = judge_drafts(target[ids], drafts[ids], has_draft[ids], drafter, draft_rows[ids], ids * 31 + 5, ids)
        return got.token_ids, got.is_accepted, got.accept_probs, got.draft_logprobs

    assert rows_that_depend_on_the_batch(compute, rows, (1, 2, 3, 17, 32)) == []
