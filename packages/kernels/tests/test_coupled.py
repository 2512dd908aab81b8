"""Coupled draws: the rule in plain Python, and the law of the tokens."""

from __future__ import annotations

import math

import numpy as np
import torch

from thalweg.kernels.reference.coupled import coupled_draw, coupled_tokens
from thalweg.kernels.reference.filters import filtered_logprobs
from thalweg.kernels.reference.random_numbers import hash_input, splitmix_hash

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def slow_draw(weights: list[float], seed: int, position: int) -> int:
    """The rule in unbounded integers and Python floats, one token at a time."""
    state = 3 * position * GAMMA & MASK
    z = mix((seed + (state ^ (state << 13)) + GAMMA) & MASK)
    best, winner = math.inf, -1
    for token, weight in enumerate(weights):
        u = (mix((z + (token + 1) * GAMMA) & MASK) >> 11) * 2.0**-53
        if weight > 0 and -math.log1p(-u) / weight < best:
            best, winner = -math.log1p(-u) / weight, token
    return winner


def test_a_draw_is_the_rule_written_out() -> None:
    generator = torch.Generator().manual_seed(1)
    weights = torch.softmax(torch.randn(40, 33, generator=generator) * 2, -1)
    weights[:, ::5] = 0
    seeds = torch.from_numpy(np.random.default_rng(2).integers(0, 2**64, 40, np.uint64))
    positions = torch.arange(40) * 7
    drawn = coupled_draw(weights, seeds, positions).tolist()
    expected = [
        slow_draw(row, seed, position)
        for row, seed, position in zip(weights.tolist(), seeds.tolist(), positions.tolist(), strict=True)
    ]
    assert drawn == expected


def test_draws_follow_the_distribution() -> None:
    weights = torch.tensor([0.5, 0.25, 0.0, 0.2, 0.05])
    count = 40_000
    drawn = coupled_draw(weights.expand(count, -1), torch.arange(count), torch.full((count,), 9))
    seen = torch.bincount(drawn.long(), minlength=5).double()
    assert seen[2] == 0
    kept = weights > 0
    expected = weights[kept].double() * count
    assert float(((seen[kept] - expected) ** 2 / expected).sum()) < 16.27  # chi-square, 3 degrees of freedom, 99.9 %


def test_a_row_without_weight_draws_nothing() -> None:
    assert coupled_draw(torch.zeros(1, 4), torch.tensor([5]), torch.tensor([0])).tolist() == [-1]


def test_a_row_draws_the_same_alone_and_in_a_batch() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(3))
    temperature, top_p = torch.tensor([0.0, 0.5, 1.0, 1.5, 1.0, 0.0]), torch.full((6,), 0.9)
    top_k, min_p, seeds, positions = torch.full((6,), 20), torch.full((6,), 0.01), torch.arange(6), torch.arange(6) + 3
    together = coupled_tokens(logits, temperature, top_p, top_k, min_p, seeds, positions)
    assert together[[0, 5]].tolist() == logits[[0, 5]].argmax(-1).tolist()
    for row in range(6):
        part = slice(row, row + 1)
        arguments = (temperature[part], top_p[part], top_k[part], min_p[part], seeds[part], positions[part])
        assert coupled_tokens(logits[part], *arguments).tolist() == [together[row].item()]
    assert (filtered_logprobs(logits, temperature, top_p, top_k, min_p)[range(6), together.long()] > -torch.inf).all()


def test_a_row_that_is_not_numbers_draws_nothing() -> None:
    logits = torch.zeros(3, 4)
    logits[0, 1] = torch.nan
    logits[1] = -torch.inf
    ones = torch.ones(3)
    drawn = coupled_tokens(logits, ones, ones, torch.full((3,), -1), 0 * ones, torch.arange(3), torch.arange(3))
    assert drawn[:2].tolist() == [-1, -1]
    assert drawn[2] >= 0


def test_other_seeds_and_positions_give_other_numbers() -> None:
    seeds, positions = torch.arange(50).repeat(2), torch.arange(100) // 50
    assert len(set(splitmix_hash(hash_input(seeds, positions, 0)).tolist())) == 100
