"""Rows are drawn some at a time on the CPU, and it does not show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from thalweg.kernels.reference import vocabulary_rows
from thalweg.kernels.reference.coupled import coupled_draw
from thalweg.kernels.reference.filters import filtered_logprobs
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
