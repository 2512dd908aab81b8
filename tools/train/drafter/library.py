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
class Batch:
    """What a step trains on; N anchors."""

    texts: Texts
    anchors: Tensor
    """int64 [N] rows of the texts."""
    is_greedy: Tensor
    """bool [N]"""


class Share:
    """What a step takes from a shelf: random texts and random anchors in them, both with replacement."""

    def __init__(self, shelf: Shelf, num_texts: int, num_anchors: int, block_size: int) -> None:
        """num_anchors: in each text. Raises ConfigError for a shelf whose texts are too short for an anchor's block."""
        length = shelf.token_ids.shape[1]
        if int(shelf.first_anchors.max()) + block_size > length:
            raise ConfigError(f"texts have {length} tokens; blocks of {block_size} do not fit behind every prompt")
        self._shelf = shelf
        self._room = length - block_size + 1
        self._chosen = torch.zeros(num_texts, dtype=torch.int64, device=shelf.token_ids.device)
        self._places = torch.zeros(num_texts, num_anchors, device=shelf.token_ids.device)

    def shuffle(self) -> None:
        """Draw texts and anchors anew, in place."""
        self._chosen.random_(len(self._shelf.token_ids))
        self._places.uniform_()

    def batch(self) -> Batch:
        """The texts and anchors drawn last."""
        shelf, chosen = self._shelf, self._chosen
        first = shelf.first_anchors[chosen, None]
        offsets = first + (self._places * (self._room - first)).long()
        begins = torch.arange(len(chosen), device=chosen.device) * shelf.token_ids.shape[1]
        is_greedy = shelf.is_greedy[chosen].repeat_interleave(offsets.shape[1])
        return Batch(shelf.texts(chosen), (begins[:, None] + offsets).flatten(), is_greedy)


class Library:
    """Batches of one shape from several shelves."""

    def __init__(self, shares: Sequence[Share]) -> None:
        self._shares = shares

    def shuffle(self) -> None:
        """Draw what the next batch is. Reads nothing back, but draws random numbers."""
        for share in self._shares:
            share.shuffle()

    def batch(self) -> Batch:
        """What was drawn last. Neither reads back nor draws, so it can be part of a CUDA graph."""
        parts = [share.batch() for share in self._shares]
        texts = [part.texts for part in parts]
        anchors, num_rows = [], 0
        for part in parts:
            anchors.append(part.anchors + num_rows)
            num_rows += len(part.texts.token_ids)
        return Batch(_joined(texts), torch.cat(anchors), torch.cat([part.is_greedy for part in parts]))


def _joined(parts: Sequence[Texts]) -> Texts:
    return Texts(
        token_ids=torch.cat([part.token_ids for part in parts]),
        positions=torch.cat([part.positions for part in parts]),
        features=torch.cat([part.features for part in parts]),
        hidden=torch.cat([part.hidden for part in parts]),
    )
