"""Drafts of texts that are known: as many of each round are right as a script says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from drafts_testing.drafters import Place
from drafts_testing.tables import scramble
from thalweg.interfaces import DraftSampler

Script = Callable[[int, int], int]
"""How many drafts of a round are right, by the number of the text and the output index of the round's first draft."""


def always(num_right: int) -> Script:
    """The same in every round."""
    return lambda number, index: num_right


def changing(seed: int) -> Script:
    """0 to 5, by a hash."""
    return lambda number, index: int(scramble(torch.tensor([1009 * number + 31 * index + 100_003 * seed]))[0]) % 6


@dataclass(frozen=True)
class KnownTexts:
    """The rule of a drafter that knows what sequence 0, 1, 2, ... will say. A wrong draft is the next higher id.

    texts: (prompt, output) each, the output as the model would go on after its end.
    """

    texts: Sequence[tuple[Sequence[int], Sequence[int]]]
    script: Script
    vocab_size: int

    def __call__(self, here: Place, sampler: DraftSampler) -> torch.Tensor:
        """Ids int64 [N] of the drafts of a place."""
        rows = zip(here.sequence_ids.tolist(), here.indices.tolist(), strict=True)
        return torch.tensor([self._draft(sequence, index, here.place) for sequence, index in rows])

    def _draft(self, sequence: int, index: int, place: int) -> int:
        prompt, output = self.texts[sequence]
        index -= len(prompt)
        if index >= len(output):
            return 0
        is_right = place < self.script(sequence, index - place)
        return output[index] if is_right else (output[index] + 1) % self.vocab_size
