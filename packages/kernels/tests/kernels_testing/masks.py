"""Logits with bitmasks over their vocabulary, recorded and random, and what they must become."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

VALUES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Masks(NamedTuple):
    """The arguments of `apply_token_bitmask`."""

    logits: Tensor
    bitmask: Tensor
    rows: Tensor

    def on(self, device: torch.device | str) -> Masks:
        return Masks(*(tensor.to(device, copy=True) for tensor in self))


def recorded_masks(case: dict[str, Any]) -> tuple[Masks, Tensor]:
    """A recorded case and the logits that it must give.

    A mask belongs to the row `step` behind the first one of its request, if the request has so many.
    """
    logits = torch.tensor(case["logits"])
    begins = case["ftp"] or list(range(len(logits)))
    ends = [*begins[1:], len(logits)]
    rows = [begins[request] + case["step"] for request in case["indices"]]
    rows = [row if row < ends[request] else -1 for row, request in zip(rows, case["indices"], strict=True)]
    expected = logits.clone()
    for row, columns in zip(expected, case["masked"], strict=True):
        row[columns] = -torch.inf
    bitmask = torch.tensor(case["bitmask"], dtype=torch.int32)[case["indices"]]
    return Masks(logits, bitmask, torch.tensor(rows)), expected


@st.composite
def random_masks(draw: st.DrawFn, most_rows: int = 6, most_words: int = 4) -> Masks:
    """Masks of any density for some of the rows, or for nobody; the vocabulary ends before or behind the last word."""
    num_rows, words = draw(st.integers(1, most_rows)), draw(st.integers(1, most_words))
    vocabulary = draw(st.integers(1, 32 * words + 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    count = draw(st.integers(0, num_rows))
    logits = torch.randn(num_rows, vocabulary, generator=generator).to(draw(st.sampled_from(VALUES)))
    rows = torch.randperm(num_rows, generator=generator)[:count]
    rows = torch.where(torch.rand(count, generator=generator) < 0.25, -1 - rows, rows)
    bits = torch.rand(count, words, 32, generator=generator) < draw(st.sampled_from([0.0, 0.05, 0.5, 0.95, 1.0]))
    bitmask = (bits.long() << torch.arange(32)).sum(-1).to(torch.int32)
    return Masks(logits, bitmask, rows.to(draw(st.sampled_from([torch.int32, torch.int64]))))


def masked_by_a_loop(masks: Masks) -> Tensor:
    """The logits, one token after the other."""
    result = masks.logits.clone()
    vocabulary, bits = result.shape[1], 32 * masks.bitmask.shape[1]
    for mask, row in zip(masks.bitmask.tolist(), masks.rows.tolist(), strict=True):
        for token in range(min(vocabulary, bits)) if row >= 0 else ():
            if not mask[token // 32] >> token % 32 & 1:
                result[row, token] = -torch.inf
    return result
