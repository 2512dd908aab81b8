"""A drafter that knows what will be said, and errs where a hash of the place says so."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch

from thalweg.interfaces import DraftRows, DraftSampler, TargetRows


class OracleDrafter:
    """Drafts the recorded continuation of every sequence, wrong at about `1 - accuracy` of the positions.

    What it drafts depends on sequence and position alone, so it is the same however the steps were cut.
    """

    def __init__(self, draft_length: int, accuracy: float, vocab_size: int) -> None:
        self._draft_length = draft_length
        self._accuracy = accuracy
        self._vocab_size = vocab_size
        self._texts: dict[int, tuple[str, Sequence[int]]] = {}

    @property
    def draft_length(self) -> int:
        return self._draft_length

    def expect(self, sequence_id: int, name: str, token_ids: Sequence[int]) -> None:
        """Tell it the whole text of a sequence, prompt included."""
        self._texts[sequence_id] = name, token_ids

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return ()

    def observe(self, rows: TargetRows) -> None:
        """It knows what will be said."""

    def propose(self, rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        drafts = np.empty((rows.sequence_ids.size, self._draft_length), np.int32)
        confidences = np.empty(drafts.shape, np.float32)
        for row, (sequence, anchor) in enumerate(zip(rows.sequence_ids.tolist(), rows.positions.tolist(), strict=True)):
            name, text = self._texts.get(sequence, ("", ()))
            for place in range(self._draft_length):
                index = anchor + 1 + place
                luck = zlib.crc32(f"{name} {index}".encode()) / 2**32
                is_right = index < len(text) and luck < self._accuracy
                drafts[row, place] = text[index] if is_right else int(luck * self._vocab_size)
                confidences[row, place] = 1 - luck
        return torch.from_numpy(drafts), torch.from_numpy(confidences)
