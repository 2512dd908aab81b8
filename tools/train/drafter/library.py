"""What a drafter trains on, as the frozen backbone sees it: read once, kept on the device, drawn from at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tools.train.drafter.blocks import Texts
from tools.train.drafter.target import Target
from torch import Tensor

from thalweg.interfaces import ConfigError

ROWS_PER_PASS = {"cpu": 4096, "cuda": 32768}
"""Rows that the backbone reads at once, by device."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Texts of one length L with what the backbone makes of them; n texts."""

    token_ids: Tensor
    """int64 [n, L]"""
    features: Tensor
    """bfloat16 [n, L, F], as an engine keeps them."""
    hidden: Tensor
    """bfloat16 [n, L, h]"""
    first_anchors: Tensor
    """int64 [n] first position that may be an anchor, at least 1."""
    is_greedy: Tensor
    """bool [n] whether the text is the backbone's own greedy continuation."""

    @classmethod
    def read(cls, target: Target, texts: Tensor, first_anchors: Tensor, is_greedy: Tensor) -> Shelf:
        """Let the backbone read texts int64 [n, L], wherever they lie."""
        device, length = target.device, texts.shape[1]
        features, hidden = [], []
        for part in torch.split(texts, max(1, ROWS_PER_PASS[device.type] // length)):
            read = target.read(part.to(device))
            features.append(read.features.bfloat16().view(*part.shape, -1))
            hidden.append(read.hidden.bfloat16().view(*part.shape, -1))
        return cls(
            texts.to(device), torch.cat(features), torch.cat(hidden), first_anchors.to(device), is_greedy.to(device)
        )

    def texts(self, chosen: Tensor) -> Texts:
        """Some of the texts, int64 [k], as rows."""
        length = self.token_ids.shape[1]
        return Texts(
            token_ids=self.token_ids[chosen].flatten(),
            positions=torch.arange(length, device=chosen.device).repeat(len(chosen)),
            features=self.features[chosen].flatten(0, 1).float(),
            hidden=self.hidden[chosen].flatten(0, 1).float(),
        )


@dataclass(frozen=True, slots=True)
class Share:
    """What a step takes from a shelf."""

    shelf: Shelf
    num_texts: int
    num_anchors: int
    """Per text."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step trains on; N anchors."""

    texts: Texts
    anchors: Tensor
    """int64 [N] rows of the texts."""
    is_greedy: Tensor
    """bool [N]"""


class Library:
    """Draws batches of one shape. Nothing is read back, so a draw can be part of a CUDA graph."""

    def __init__(self, shares: Sequence[Share], block_size: int) -> None:
        """Raises ConfigError for a shelf whose texts are too short for an anchor and its block."""
        for share in shares:
            length = share.shelf.token_ids.shape[1]
            if int(share.shelf.first_anchors.max()) + block_size > length:
                raise ConfigError(f"texts have {length} tokens; blocks of {block_size} do not fit behind every prompt")
        self._shares = shares
        self._block_size = block_size

    def draw(self) -> Batch:
        """Random texts and random anchors in them, both with replacement."""
        texts, anchors, is_greedy, num_rows = [], [], [], 0
        for share in self._shares:
            shelf = share.shelf
            count, length = shelf.token_ids.shape
            chosen = torch.randint(count, (share.num_texts,), device=shelf.token_ids.device)
            first = shelf.first_anchors[chosen, None]
            places = torch.rand(share.num_texts, share.num_anchors, device=chosen.device)
            offsets = first + (places * (length - self._block_size + 1 - first)).long()
            begins = num_rows + length * torch.arange(share.num_texts, device=chosen.device)
            texts.append(shelf.texts(chosen))
            anchors.append((begins[:, None] + offsets).flatten())
            is_greedy.append(shelf.is_greedy[chosen].repeat_interleave(share.num_anchors))
            num_rows += length * share.num_texts
        return Batch(_joined(texts), torch.cat(anchors), torch.cat(is_greedy))


def _joined(parts: Sequence[Texts]) -> Texts:
    return Texts(
        token_ids=torch.cat([part.token_ids for part in parts]),
        positions=torch.cat([part.positions for part in parts]),
        features=torch.cat([part.features for part in parts]),
        hidden=torch.cat([part.hidden for part in parts]),
    )
