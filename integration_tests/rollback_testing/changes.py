"""What to make of proposals before anybody else sees them."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import torch

from rollback_testing.serving import Change, Texts
from thalweg.interfaces import DraftRows


def helped(texts: Texts, accuracy: float = 0.8) -> Change:
    """The drafter's own ids, but where luck has it the token that will be said; confidences that know of that luck."""

    def change(rows: DraftRows, ids: torch.Tensor, confidences: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        where = zip(rows.sequence_ids.tolist(), rows.positions.tolist(), strict=True)
        for row, (sequence, position) in enumerate(where):
            for place, token in enumerate(texts[sequence][position + 1 : position + 1 + ids.shape[1]]):
                luck = crc32(f"{sequence} {position + 1 + place}".encode()) / 2**32
                confidences[row, place] = 1 - luck
                if luck < accuracy:
                    ids[row, place] = token
        return ids, confidences

    return change


def confident(confidences: Sequence[Sequence[float]]) -> Change:
    """These confidences [sequences, G], whatever is drafted."""

    def change(rows: DraftRows, ids: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ids, torch.tensor([confidences[sequence] for sequence in rows.sequence_ids.tolist()])

    return change
