"""What tests change about a drafter: some of the words it says, or how sure it says it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

import torch

from thalweg.interfaces import DraftRows, DraftSampler

Texts = list[list[int]]
"""Prompt and output of each sequence."""
Confide = Callable[[DraftRows, torch.Tensor], torch.Tensor]
"""Confidences float32 [N, G] in place of the drafter's."""


@dataclass
class Oracle:
    """Knows the texts, and gives the drafter the right word where luck has it; its confidences know of that luck."""

    texts: Texts
    accuracy: float = 0.8

    def luck(self, sequence: int, position: int) -> float:
        return crc32(f"{sequence} {position}".encode()) / 2**32

    def word(self, sequence: int, position: int) -> int | None:
        text = self.texts[sequence]
        return text[position] if position < len(text) and self.luck(sequence, position) < self.accuracy else None

    def confide(self, rows: DraftRows, confidences: torch.Tensor) -> torch.Tensor:
        where = zip(rows.sequence_ids.tolist(), rows.positions.tolist(), strict=True)
        places = range(1, 1 + confidences.shape[1])
        return torch.tensor([[1 - self.luck(row, anchor + place) for place in places] for row, anchor in where])


@dataclass
class HelpedSampler:
    """A sampler whose logits hold nothing but the right word where the oracle has one."""

    sampler: DraftSampler
    oracle: Oracle
    rows: DraftRows

    def sample(self, place: int, logits: torch.Tensor) -> torch.Tensor:
        where = zip(self.rows.sequence_ids.tolist(), self.rows.positions.tolist(), strict=True)
        for row, (sequence, anchor) in enumerate(where):
            word = self.oracle.word(sequence, anchor + 1 + place)
            if word is not None:
                logits[row] = -torch.inf
                logits[row, word] = 0.0
        drawn: torch.Tensor = self.sampler.sample(place, logits)
        return drawn


def confident(confidences: Sequence[Sequence[float]]) -> Confide:
    """These confidences [sequences, G], whatever is drafted."""
    return lambda rows, _: torch.tensor([confidences[sequence] for sequence in rows.sequence_ids.tolist()])
