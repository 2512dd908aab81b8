"""Draft blocks at many anchors of whole texts at once, through the package's draft network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tools.train.drafter.windows import TextWindows
from torch import Tensor

from thalweg.model import DraftNetwork


@dataclass(frozen=True, slots=True)
class Texts:
    """Rows of texts that lie one after the other, as the frozen backbone sees them; T rows."""

    token_ids: Tensor
    """int64 [T]"""
    positions: Tensor
    """int64 [T] in their texts."""
    features: Tensor
    """[T, L * h] of the target layers."""
    hidden: Tensor
    """[T, h] final rows of the backbone, which give the distribution of the next token."""

    def following(self, anchors: Tensor, count: int) -> Tensor:
        """int64 [N, count]: the rows from each anchor int64 [N] on."""
        return anchors[:, None] + torch.arange(count, device=anchors.device)


def block_rows(network: DraftNetwork, texts: Texts, anchors: Tensor) -> Tensor:
    """Collapsed rows [N, G, h] of the blocks [anchor, noise, ...] at the anchors, rows int64 [N] of the texts.

    The window of a block is what the target has processed before its anchor, which must not be the first of its text.
    """
    config = network.config
    size, positions = config.dspark_block_size, texts.positions[anchors]
    memory = TextWindows(
        network.main_keys(texts.features, network.tables.at(texts.positions, 0)),
        anchors,
        positions,
        network.numerics,
        first_layer=config.num_hidden_layers,
        window_size=config.sliding_window,
        block_size=size,
    )
    token_ids = torch.full((len(anchors), size), config.dspark_noise_token_id, device=anchors.device)
    token_ids[:, 0] = texts.token_ids[anchors]
    places = positions[:, None] + torch.arange(size, device=anchors.device)
    rows = network.block_rows(token_ids.flatten(), places.flatten(), None, memory)
    return rows.view(len(anchors), size, -1)
