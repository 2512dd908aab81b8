"""Attention memory of training blocks: the main keys of whole texts, and blocks that begin anywhere in them."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.model import Numerics


class TextWindows:
    """Windows of N blocks of G rows. All rows of a block see the W positions before its anchor and the whole block."""

    def __init__(
        self,
        main_keys: Tensor,
        anchors: Tensor,
        positions: Tensor,
        numerics: Numerics,
        *,
        first_layer: int,
        window_size: int,
        block_size: int,
    ) -> None:
        """main_keys: [T, B, D] of B draft layers for the rows of texts that lie one after the other; anchors: int64 [N]
        rows of the anchors; positions: int64 [N] of the anchors in their texts; first_layer: run-time layer of B = 0.
        """
        self._main_keys = numerics.mxfp8(main_keys).unbind(1)
        self._numerics = numerics
        self._first_layer = first_layer
        back = torch.arange(window_size, 0, -1, device=anchors.device)
        before = torch.where(back <= positions[:, None], anchors[:, None] - back, -1)
        block = torch.arange(len(anchors) * block_size, device=anchors.device).view(-1, block_size)
        self._indices = torch.cat([before, main_keys.shape[0] + block], dim=1)

    def window(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [T + N*G, D] of a layer, block keys being rows [N*G, D], and int64 [N, W + G] which a block sees."""
        return torch.cat([self._main_keys[layer - self._first_layer], self._numerics.mxfp8(rows)]), self._indices
