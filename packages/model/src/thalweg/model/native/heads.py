"""The two ends of the model: token embedding with image rows, and the language-model head."""

from __future__ import annotations

import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels import BoundOps
from thalweg.model.metadata import ForwardBatch


class Embedding:
    """Token ids to rows. Nothing is read back: that ids are in the vocabulary is for admission to know."""

    def __init__(self, table: torch.Tensor) -> None:
        """table: bfloat16 [V, h]"""
        self.table = table

    def __call__(self, batch: ForwardBatch) -> torch.Tensor:
        """bfloat16 [T, h]. Rows of the image mask take the batch's image embeddings, in order.

        Raises ConfigError for an image mask without embeddings of the right width.
        """
        mask = batch.image_mask
        if mask is None:
            return self.rows(batch.token_ids)
        embeddings, hidden = batch.image_embeddings, self.table.shape[1]
        if embeddings is None or embeddings.dim() != 2 or embeddings.shape[1] != hidden:
            found = None if embeddings is None else tuple(embeddings.shape)
            raise ConfigError(
                f"image_embeddings is {found}; with an image_mask [number of image rows, {hidden}] is needed"
            )
        rows = self.rows(torch.where(mask, 0, batch.token_ids))
        if embeddings.shape[0] == 0:
            return rows
        number = (mask.cumsum(0) - 1).clamp(min=0, max=embeddings.shape[0] - 1)
        return torch.where(mask[:, None], embeddings.to(rows.dtype).index_select(0, number), rows)

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """bfloat16 [n, h] of ids int [n]."""
        return torch.nn.functional.embedding(token_ids, self.table)


class Head:
    """Normed rows to logits."""

    def __init__(self, weight: torch.Tensor, ops: BoundOps) -> None:
        """weight: bfloat16 [V, h]"""
        self.weight = weight
        self._ops = ops

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [n, V] of final normed rows bfloat16 [n, h]."""
        logits: torch.Tensor = self._ops.bf16_linear(rows, self.weight, torch.float32)
        return logits
