"""Verification and reports on Hopper: those of the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernels_testing.logit_rows import logits_of, on, streams_of

from thalweg.interfaces import ConfigError
from thalweg.kernels import bind

reference = bind("cpu")
kernels = bind("sm90")


def decode_step(vocabulary: int, seed: int) -> dict[str, Any]:
    """Eight sequences of one to four rows, some of them broken, some greedy, some drafts certain."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([3, 1, 4, 2, 4, 3, 1, 4], dtype=torch.int32)
    rows = int(lengths.sum())
    logits = logits_of("peaked", rows, vocabulary, seed)
    pool = torch.log_softmax(logits_of("peaked", 30, vocabulary, seed + 1), -1).view(10, 3, -1)
    tokens = torch.where(
        torch.rand(rows, generator=generator) < 0.6, logits.argmax(-1).roll(1), pool[1, 0].argmax()
    ).int()
    tokens[4] = -1
    logprobs = torch.log_softmax(logits, -1)
    drawn = torch.arange(0, rows, 2) if seed % 2 else torch.arange(rows)
    return {
        "best_ids": logits.argmax(-1).int(),
        "token_ids": tokens,
        "query_lengths": lengths,
        "is_broken": torch.arange(rows) == 5,
        "logprobs": logprobs[drawn].contiguous(),
        "seeds": drawn * 31 + seed,
        "positions": drawn * 3,
        "draft_pool": pool,
        "read_slots": torch.arange(8, dtype=torch.int32) + 1,
        "is_certain": torch.rand(10, 3, generator=generator) < 0.3,
        "drawn_rows": drawn,
    }


def same(got: Any, expected: Any) -> None:
    for name in type(expected).__slots__:
        found, wanted = getattr(got, name).cpu(), getattr(expected, name)
        if wanted.is_floating_point():
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6, msg=name)
        else:
            assert found.dtype == wanted.dtype, name
            assert torch.equal(found, wanted), name


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("vocabulary", [40, 129_280])
def test_verification_is_that_of_the_reference(seed: int, vocabulary: int, hopper: torch.device) -> None:
    given = decode_step(vocabulary, seed)
    if seed == 1:
        given["is_certain"] = None
    there = {name: value if value is None else value.to(hopper) for name, value in given.items()}
    expected, got = reference.verify_drafts(**given), kernels.verify_drafts(**there)
    same(got, expected)
    names = ("token_ids", "query_lengths", "is_broken")
    same(
        kernels.match_drafts(there["best_ids"], *(there[name] for name in names), 3),
        reference.match_drafts(given["best_ids"], *(given[name] for name in names), 3),
    )
    forced = torch.where(torch.arange(22) % 3 == 1, given["token_ids"].roll(-1), -1).int()
    forced[9] = 7
    same(
        kernels.force_tokens(got, forced.to(hopper), there["token_ids"], there["query_lengths"]),
        reference.force_tokens(expected, forced, given["token_ids"], given["query_lengths"]),
    )
    prefix = kernels.accepted_prefix(got.is_accepted, there["token_ids"], there["query_lengths"], 3)
    for found, wanted in zip(
        prefix,
        reference.accepted_prefix(expected.is_accepted, given["token_ids"], given["query_lengths"], 3),
        strict=True,
    ):
        assert torch.equal(found.cpu(), wanted)


@pytest.mark.gpu
@pytest.mark.sm90
def test_drafts_that_no_pool_has_are_refused(hopper: torch.device) -> None:
    given = {name: value.to(hopper) for name, value in decode_step(40, 0).items()}
    given["token_ids"] = given["best_ids"].roll(1)
    given["is_broken"][:] = False
    given["is_certain"][:] = True
    given["read_slots"][:] = torch.tensor([10, 2, -1, 4, 2**31 - 1, -(2**31), 7, 8], device=hopper)
    outside = torch.tensor([True, False, True, False, True, True, False, False], device=hopper)
    got = kernels.verify_drafts(**given)
    assert not bool(got.num_accepted[outside].any())
    given["query_lengths"][:] = torch.tensor([22, 0, 0, 0, 0, 0, 0, 0])
    given["read_slots"][:] = 9
    assert not bool(kernels.verify_drafts(**given).is_accepted[3:-1].any())


@pytest.mark.gpu
@pytest.mark.sm90
def test_drafts_of_rows_beyond_the_last_one_are_refused(hopper: torch.device) -> None:
    logprobs = torch.log_softmax(logits_of("peaked", 4, 5001), -1).to(hopper)
    rows, has_draft = torch.tensor([0, 4, 1 << 40, 3], device=hopper), torch.ones(4, dtype=torch.bool, device=hopper)
    best = logprobs.argmax(-1)
    got = kernels.judge_drafts(logprobs, best, has_draft, logprobs, rows, rows, rows)
    assert got.is_accepted.tolist() == [True, False, False, True]
    assert got.draft_logprobs[1:3].tolist() == [-torch.inf] * 2
    torch.testing.assert_close(got.accept_probs[1:3].cpu(), torch.zeros(2), rtol=0, atol=1e-5)
    assert bool(((got.token_ids >= 0) & (got.token_ids < 5001)).all())


@pytest.mark.gpu
@pytest.mark.sm90
def test_reports_and_lists_are_those_of_the_reference(hopper: torch.device) -> None:
    logprobs = torch.log_softmax(logits_of("peaked", 9, 5001), -1)
    ids = torch.tensor([0, 5000, 17, -1, 5001, 3, 44, 2500, 1], dtype=torch.int32)
    here, there = logprobs.to(hopper), ids.to(hopper)
    assert torch.equal(kernels.token_logprobs(here, there).cpu(), reference.token_logprobs(logprobs, ids))
    torch.testing.assert_close(
        kernels.sum_smaller_probs(here, there).cpu(), reference.sum_smaller_probs(logprobs, ids), rtol=1e-6, atol=1e-7
    )
    values, targets = reference.top_logprobs(logprobs, 8)
    draft_values, drafts = reference.top_logprobs(logprobs.flip(0) + 0.1 * torch.randn(9, 5001), 6)
    drafts[:, :3] = targets[:, 2:5]
    rows = torch.tensor([0, 8, 3, 3, 1, 2, 5, 6, 7])
    given = drafts, draft_values, drafts[:, 1].contiguous(), targets, rows
    for found, wanted in zip(
        kernels.align_draft_topk(*on(hopper, *given)), reference.align_draft_topk(*given), strict=True
    ):
        assert torch.equal(found.cpu(), wanted)
    wanted_ids = torch.where(torch.arange(9) % 2 == 0, targets[:, 3], -9)
    found = kernels.lookup_by_key(*on(hopper, targets, values, wanted_ids))
    assert torch.equal(found.cpu(), reference.lookup_by_key(targets, values, wanted_ids))
    for case in range(3):
        seeds, positions = streams_of(300)
        assert torch.equal(
            kernels.uniform(*on(hopper, seeds, positions), case).cpu(), reference.uniform(seeds, positions, case)
        )


def test_what_the_kernels_cannot_take_is_named() -> None:
    ids, values, rows = torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, 3), torch.tensor([0, 1])
    with pytest.raises(ConfigError, match=r"draft_rows has dtype torch.float32; int32 or int64 is required"):
        kernels.align_draft_topk(ids, values, rows, ids, rows.float())
    with pytest.raises(ConfigError, match=r"got draft_topk_logprobs on cpu, .* one CUDA device is required"):
        kernels.align_draft_topk(ids, values, rows, ids, rows)
    with pytest.raises(ConfigError, match=r"keys has shape \[3\]; \[n, K\] is expected"):
        kernels.lookup_by_key(ids[0], values[0], rows)
    logprobs, has_draft = torch.zeros(2, 5), torch.ones(2, dtype=torch.bool)
    with pytest.raises(ConfigError, match=r"draft_rows on cpu, seeds on cpu, positions on cpu; one CUDA device"):
        kernels.judge_drafts(logprobs, rows, has_draft, logprobs, rows, rows, rows)
    with pytest.raises(ConfigError, match=r"draft_pool on cpu, read_slots on cpu, is_certain on cpu; one CUDA device"):
        kernels.verify_drafts(
            rows, rows, torch.ones(2).int(), ~has_draft, logprobs, rows, rows, torch.zeros(2, 1, 5), rows,
            is_certain=has_draft[:, None],
        )  # fmt: skip
    ones, counts = torch.ones(2), torch.zeros(3, 5, dtype=torch.int32)
    with pytest.raises(ConfigError, match=r"repetition on cpu, presence on cpu, frequency on cpu; one CUDA device"):
        kernels.apply_penalties(logprobs, counts, counts > 0, rows, rows[:, None], ones, ones, ones)
    with pytest.raises(ConfigError, match=r"got logits on cpu, rows on cpu, ids on cpu, biases on cpu; one CUDA"):
        kernels.add_biases(logprobs, rows, rows, ones)
