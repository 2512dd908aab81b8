"""A verified step: the rules as a plain loop over its rows, what must not matter, and matching."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernels_testing.distributions import random_logprobs
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.random_numbers import COIN, FRESH, RESIDUAL, uniform
from thalweg.kernels.reference.sampling import draw
from thalweg.kernels.reference.verification import (
    ALPHA,
    Verification,
    force_tokens,
    match_drafts,
    verify_drafts,
)
from thalweg.kernels.reference.vocabulary_rows import argmax_lowest
from thalweg.kernels.testing import same_bits


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    """A decode step with sequences of every kind, greedy, filtered, certain, broken, and drafts that are no tokens."""
    draft_length, vocabulary = draw(st.integers(1, 4)), draw(st.integers(2, 9))
    lengths = draw(st.lists(st.integers(1, 1 + draft_length), min_size=1, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count, rows = len(lengths), sum(lengths)
    seed = int(rng.integers(2**31))
    is_drawn = np.repeat(rng.random(count) < 0.7, lengths)
    return {
        "lengths": torch.tensor(lengths),
        "logprobs": random_logprobs(rows, vocabulary, seed=seed, filtered=0.3),
        "pool": random_logprobs(count + 1, draft_length, vocabulary, seed=seed + 1, filtered=0.3),
        "read_slots": torch.from_numpy(rng.permutation(count + 1)[:count].astype(np.int32)),
        "is_certain": torch.from_numpy(rng.random((count + 1, draft_length)) < 0.2),
        "token_ids": torch.from_numpy(rng.integers(-1, vocabulary, rows).astype(np.int32)),
        "is_broken": torch.from_numpy(rng.random(rows) < 0.1),
        "drawn_rows": torch.from_numpy(np.flatnonzero(is_drawn)),
        "seeds": torch.from_numpy(rng.integers(0, 2**64, rows, dtype=np.uint64)),
        "positions": torch.from_numpy(rng.integers(0, 10**9, rows)),
    }


def verify(step: dict[str, Any]) -> Verification:
    chosen = step["drawn_rows"]
    return verify_drafts(
        argmax_lowest(step["logprobs"]),
        step["token_ids"],
        step["lengths"],
        step["is_broken"],
        step["logprobs"][chosen],
        step["seeds"][chosen],
        step["positions"][chosen],
        step["pool"],
        step["read_slots"],
        is_certain=step["is_certain"],
        drawn_rows=chosen,
    )


def verdict_of_a_row(step: dict[str, Any], row: int, sequence: int, place: int) -> tuple[int, bool, float, float]:
    """Token, whether it is accepted, probability of that and log-probability of the draft, of a row with a draft."""
    target = step["logprobs"][row].exp().tolist()
    draft = int(step["token_ids"][row + 1])
    slot = int(step["read_slots"][sequence])
    drafter = step["pool"][slot, place].exp().tolist()
    best = target.index(max(target))
    if row not in step["drawn_rows"]:
        holds = draft == best and not step["is_broken"][row]
        return best, holds, float(holds), 0.0 if draft >= 0 else -math.inf
    if step["is_certain"][slot, place]:
        drafter = [float(token == draft) for token in range(len(target))]
    of_row = step["seeds"][row : row + 1], step["positions"][row : row + 1]
    holds = draft >= 0 and (
        target[draft] >= drafter[draft] > 0
        or (drafter[draft] == 0 < target[draft])
        or float(uniform(*of_row, COIN)) * drafter[draft] < target[draft]
    )
    residual = [max(p - float(np.float32(ALPHA)) * d, 0.0) for p, d in zip(target, drafter, strict=True)]
    accept_prob, token = 1 - sum(residual), draft
    if not holds:
        token = int(draw(torch.tensor([residual]), uniform(*of_row, RESIDUAL))) if sum(residual) else best
    if step["is_broken"][row]:
        token, holds, accept_prob = best, False, 0.0
    logprob = -math.inf if draft < 0 or drafter[draft] == 0 else math.log(drafter[draft])
    return token, holds, accept_prob, logprob


@given(steps())
def test_a_step_is_verified_as_by_a_loop_over_its_rows(step: dict[str, Any]) -> None:
    got, row = verify(step), 0
    draft_length = step["pool"].shape[1]
    for sequence, length in enumerate(step["lengths"].tolist()):
        first, prefix = row, []
        for place in range(length - 1):
            token, holds, accept_prob, logprob = verdict_of_a_row(step, row, sequence, place)
            assert int(got.token_ids[row]) == token
            assert bool(got.is_accepted[row]) == holds
            assert float(got.accept_probs[row]) == pytest.approx(accept_prob, abs=1e-6)
            assert float(got.draft_logprobs[row]) == pytest.approx(logprob, abs=1e-5)
            if holds and len(prefix) == place:
                prefix.append(token)
            row += 1
        weights = step["logprobs"][row : row + 1].exp()
        fresh = int(draw(weights, uniform(step["seeds"][row : row + 1], step["positions"][row : row + 1], FRESH)))
        is_drawn = row in step["drawn_rows"] and not step["is_broken"][row]
        assert int(got.token_ids[row]) == (fresh if is_drawn else int(weights.argmax()))
        last_row = (got.is_accepted[row], got.accept_probs[row], got.draft_logprobs[row])
        assert [float(value) for value in last_row] == [1, 1, 0]
        row += 1
        assert int(got.num_accepted[sequence]) == len(prefix)
        assert int(got.last_rows[sequence]) == first + len(prefix)
        assert got.accepted_ids[sequence].tolist() == prefix + [-1] * (draft_length - len(prefix))


def test_the_result_has_the_stated_types() -> None:
    zeros = torch.zeros(3, dtype=torch.int32)
    logprobs = random_logprobs(3, 4)
    step = {"lengths": torch.tensor([1, 2]), "logprobs": logprobs, "pool": random_logprobs(2, 2, 4), "token_ids": zeros}
    step |= {"read_slots": torch.tensor([0, 1]), "is_certain": None, "is_broken": zeros.bool(), "drawn_rows": None}
    by_rejection = verify({**step, "drawn_rows": torch.arange(3), "seeds": zeros.long(), "positions": zeros})
    by_matching = match_drafts(zeros, zeros, torch.tensor([1, 2]), zeros.bool(), 2)
    forced = force_tokens(by_rejection, zeros.long(), zeros, torch.tensor([1, 2]))
    expected = [
        (torch.int32, (3,)), (torch.bool, (3,)), (torch.float32, (3,)), (torch.float32, (3,)),
        (torch.int32, (2,)), (torch.int64, (2,)), (torch.int32, (2, 2)),
    ]  # fmt: skip
    for got in (by_rejection, by_matching, forced):
        assert [(getattr(got, name).dtype, getattr(got, name).shape) for name in Verification.__slots__] == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0])
def test_no_draft_holds_in_a_broken_row_and_its_token_is_in_the_vocabulary(value: float) -> None:
    rows, lengths = 8, torch.tensor([4, 4])
    logprobs = random_logprobs(rows, 5)
    logprobs[[1, 7]] = value
    is_broken = torch.zeros(rows, dtype=torch.bool)
    is_broken[[1, 7]] = True
    best = argmax_lowest(logprobs)
    drafts = best.clone().roll(1)
    drafts[2] = 0
    pool = torch.full((1, 3, 5), -30.0)
    got = verify_drafts(
        best, drafts, lengths, is_broken, logprobs, torch.arange(rows), torch.arange(rows), pool, torch.tensor([0, 0])
    )
    assert got.num_accepted.tolist() == [1, 3]
    assert got.last_rows.tolist() == [1, 7]
    assert got.token_ids[[1, 7]].tolist() == [0, 0]
    assert (got.accept_probs[1], got.is_accepted[1]) == (0, False)
    matched = match_drafts(best, drafts, lengths, is_broken, 3)
    assert (matched.num_accepted.tolist(), matched.token_ids[[1, 7]].tolist()) == ([1, 3], [0, 0])


def test_distributions_of_drafts_that_are_not_numbers_refuse_the_draft_and_yield_the_best() -> None:
    target = random_logprobs(1, 5)
    step = verify_drafts(
        argmax_lowest(target).repeat(2),
        torch.tensor([0, 2]),
        torch.tensor([2]),
        torch.zeros(2, dtype=torch.bool),
        target.repeat(2, 1),
        torch.tensor([4, 4]),
        torch.tensor([0, 1]),
        torch.full((1, 1, 5), math.nan),
        torch.tensor([0]),
    )
    assert (int(step.token_ids[0]), bool(step.is_accepted[0])) == (int(target.argmax()), False)
    assert int(step.num_accepted) == 0


@given(steps())
def test_a_sequence_is_verified_the_same_alone_and_beside_others(step: dict[str, Any]) -> None:
    together, row = verify(step), 0
    for sequence, length in enumerate(step["lengths"].tolist()):
        part = slice(row, row + length)
        by_row = {key: step[key][part] for key in ("logprobs", "token_ids", "is_broken", "seeds", "positions")}
        drawn = step["drawn_rows"]
        drawn = drawn[(drawn >= row) & (drawn < row + length)] - row
        of_sequence = {key: step[key][sequence : sequence + 1] for key in ("lengths", "read_slots")}
        alone = verify({**step, **by_row, **of_sequence, "drawn_rows": drawn})
        for name in ("token_ids", "is_accepted", "accept_probs", "draft_logprobs"):
            assert same_bits(getattr(alone, name), getattr(together, name)[part].contiguous())
        assert int(alone.num_accepted) == int(together.num_accepted[sequence])
        assert int(alone.last_rows) == int(together.last_rows[sequence]) - row
        assert torch.equal(alone.accepted_ids[0], together.accepted_ids[sequence])
        row += length


@given(steps())
def test_a_step_of_greedy_rows_is_verified_by_matching_the_argmax(step: dict[str, Any]) -> None:
    by_rejection = verify({**step, "drawn_rows": torch.zeros(0, dtype=torch.int64)})
    by_matching = match_drafts(
        argmax_lowest(step["logprobs"]), step["token_ids"], step["lengths"], step["is_broken"], step["pool"].shape[1]
    )
    for name in Verification.__slots__:
        assert torch.equal(getattr(by_rejection, name), getattr(by_matching, name)), name


@pytest.mark.parametrize("broken", [False, True])
def test_drafts_match_up_to_the_first_that_the_target_contradicts(broken: bool) -> None:
    lengths = torch.tensor([4, 1, 3, 4])
    fed = torch.tensor([1, 20, 21, 22, 2, 3, 30, 31, 4, 50, 51, 52])
    drawn = torch.tensor([20, 9, 22, 8, 7, 30, 31, 32, 9, 51, 52, 6], dtype=torch.int32)
    is_broken = torch.zeros(12, dtype=torch.bool)
    is_broken[5] = broken
    got = match_drafts(drawn, fed, lengths, is_broken, 3)
    assert got.num_accepted.tolist() == [1, 0, 0 if broken else 2, 0]
    assert got.last_rows.tolist() == [1, 4, 5 if broken else 7, 8]
    assert got.accepted_ids.tolist() == [[20, -1, -1], [-1] * 3, [-1] * 3 if broken else [30, 31, -1], [-1] * 3]
    assert torch.equal(got.token_ids, drawn)
    assert got.is_accepted.tolist() == [True, False, True, True, True, not broken] + [True, True, False] + [True] * 3
    assert torch.equal(got.accept_probs, got.is_accepted.float())
    assert not got.draft_logprobs.any()


def test_without_drafts_the_newest_token_is_the_only_row() -> None:
    got = match_drafts(
        torch.tensor([5, 6]), torch.tensor([1, 2]), torch.tensor([1, 1]), torch.zeros(2, dtype=torch.bool), 0
    )
    assert (got.num_accepted.tolist(), got.last_rows.tolist(), got.accepted_ids.shape) == ([0, 0], [0, 1], (2, 0))


def test_a_forced_token_stands_and_holds_only_drafts_that_equal_it() -> None:
    fed, lengths = torch.tensor([9, 1, 2, 3]), torch.tensor([4])
    free = match_drafts(torch.tensor([1, 5, 3, 7]), fed, lengths, torch.zeros(4, dtype=torch.bool), 3)
    assert free.num_accepted.tolist() == [1]
    expected = {
        (-1, -1, -1, -1): (1, [1, 5, 3, 7]),
        (1, 2, -1, 8): (3, [1, 2, 3, 8]),  # what the target refused holds once it is forced
        (-1, 2, 4, -1): (2, [1, 2, 4, 7]),
        (9, 1, 2, 3): (0, [9, 1, 2, 3]),  # the anchor is no draft, and forced ids are not the tokens fed
    }
    for forced, (num_accepted, token_ids) in expected.items():
        got = force_tokens(free, torch.tensor(forced), fed, lengths)
        assert got.num_accepted.tolist() == got.last_rows.tolist() == [num_accepted], forced
        assert got.token_ids.tolist() == token_ids
        assert got.accepted_ids.tolist() == [[1, 2, 3][:num_accepted] + [-1] * (3 - num_accepted)]
    assert bool(force_tokens(free, torch.tensor([-1, -1, -1, 8]), fed, lengths).is_accepted[3]), (
        "the last row judges none"
    )


def test_bad_input_of_verification_is_named() -> None:
    two, flags = torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.bool)
    logprobs, pool, lengths = torch.zeros(2, 4), torch.zeros(1, 1, 4), torch.tensor([2])

    def run(**other: Tensor) -> Verification:
        named: dict[str, Any] = {
            "best_ids": two, "token_ids": two, "query_lengths": lengths, "is_broken": flags, "logprobs": logprobs,
            "seeds": two.long(), "positions": two, "draft_pool": pool, "read_slots": two[:1],
        }  # fmt: skip
        return verify_drafts(**{**named, **other})

    run()
    for other, message in (
        ({"draft_pool": pool[:, :0]}, "draft_pool has no rows per slot"),
        ({"draft_pool": pool[..., :3]}, r"draft_pool has shape \[1, 1, 3\]; \[slots, G, 4\] is expected"),
        ({"best_ids": two[:1]}, r"best_ids has shape \[1\]; \[2\] is expected"),
        ({"is_broken": flags[:1]}, r"is_broken has shape \[1\]; \[2\] is expected"),
        ({"read_slots": two}, r"read_slots has shape \[2\]; \[1\] is expected"),
        ({"is_certain": flags}, r"is_certain has shape \[2\]; \[1, 1\] is expected"),
        ({"drawn_rows": torch.tensor([0])}, r"drawn_rows has shape \[1\]; \[2\] is expected"),
        ({"seeds": two}, r"seeds have dtype torch.int32; uint64 or int64 is required"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(**other)
    with pytest.raises(ConfigError, match=r"drawn_ids has shape \[1\]; \[2\] is expected"):
        match_drafts(two[:1], two, lengths, flags, 1)
    with pytest.raises(ConfigError, match=r"forced_ids has shape \[1\]; \[2\] is expected"):
        force_tokens(run(), two[:1], two, lengths)
