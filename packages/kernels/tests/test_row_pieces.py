"""Rows are drawn some at a time on the CPU, and it does not show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from thalweg.kernels.reference import vocabulary_rows
from thalweg.kernels.reference.coupled import coupled_draw
from thalweg.kernels.reference.filters import filter_mask, filtered_logprobs
from thalweg.kernels.reference.sampling import draw

NUM_ROWS, VOCAB = 11, 40


def filtered(logits: torch.Tensor) -> torch.Tensor:
    temperature = torch.linspace(0, 2, NUM_ROWS)
    top_p, top_k = torch.linspace(0.1, 1, NUM_ROWS), torch.tensor([-1, 3] * 6)[:NUM_ROWS]
    min_p = torch.tensor([0.0, 0.1, 0.0] * 4)[:NUM_ROWS]
    return filtered_logprobs(logits, temperature, top_p, top_k, min_p)


def drawn(logits: torch.Tensor) -> torch.Tensor:
    weights = torch.exp(logits)
    weights[4] = 0
    return draw(weights, torch.linspace(0, 1, NUM_ROWS, dtype=torch.float64))


def coupled(logits: torch.Tensor) -> torch.Tensor:
    return coupled_draw(torch.softmax(logits, -1), torch.arange(NUM_ROWS), torch.arange(NUM_ROWS) + 7)


@pytest.mark.parametrize("op", [filtered, drawn, coupled])
@pytest.mark.parametrize("piece", [1, 2 * VOCAB, 5 * VOCAB + 1])
def test_pieces_of_any_size_give_the_same(
    op: Callable[[torch.Tensor], torch.Tensor], piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(NUM_ROWS, VOCAB, generator=torch.Generator().manual_seed(8))
    logits[2, ::2] = logits[2, 1::2]  # ties
    whole = op(logits.clone())
    monkeypatch.setattr(vocabulary_rows, "PIECE_ELEMENTS", piece)
    assert torch.equal(op(logits.clone()), whole)


def test_the_survivors_are_the_prefix_of_the_order_with_ties_by_id() -> None:
    generator = torch.Generator().manual_seed(9)
    logits = torch.randint(-6, 7, (60, VOCAB), generator=generator) * 0.5
    top_p = torch.rand(60, generator=generator).clamp(min=0.01)
    top_k = torch.randint(1, VOCAB + 9, (60,), generator=generator)
    min_p = torch.rand(60, generator=generator) * 0.3
    kept = filter_mask(logits, top_p, top_k, min_p)
    for row in range(60):
        values = logits[row].tolist()
        order = sorted(range(VOCAB), key=lambda token: (-values[token], token))
        mass = torch.exp(logits[row, order].double() - max(values))
        before = torch.cumsum(mass, 0) - mass
        count = int((before <= top_p[row].double() * mass.sum() + 1e-12).sum())
        count = min(count, int(top_k[row]), int((mass >= min_p[row].double()).sum()))
        assert kept[row].nonzero().flatten().tolist() == sorted(order[:count])
