"""The two ends of the model: token embedding with image rows, and the final norm with the language-model head."""

from __future__ import annotations

import torch

from thalweg.interfaces import RequestError
from thalweg.model.hyper_connections import collapse
from thalweg.model.metadata import ForwardBatch
from thalweg.model.numerics import Numerics


class Embedding:
    """Token ids to rows."""

    def __init__(self, table: torch.Tensor, numerics: Numerics) -> None:
        """table: [V, h]"""
        self._table = table
        self._numerics = numerics

    def __call__(self, batch: ForwardBatch) -> torch.Tensor:
        """[T, h]. Rows of the image mask take the batch's image embeddings; their token ids are not looked at.

        Raises RequestError for a token id outside the vocabulary or image embeddings that do not fit the mask.
        """
        token_ids, mask = batch.token_ids, batch.image_mask
        if mask is not None:
            token_ids = torch.where(mask, 0, token_ids)
        vocab_size = self._table.shape[0]
        if token_ids.numel() and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocab_size:
            bad = token_ids[(token_ids < 0) | (token_ids >= vocab_size)][0]
            raise RequestError(f"token id {int(bad)} is outside the vocabulary of {vocab_size}")
        rows = self.rows(token_ids)
        if mask is None:
            return rows
        image_rows = self._image_rows(batch, mask)
        return rows.index_put((mask.nonzero().squeeze(1),), image_rows)

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[n, h] of ids int [n] that are known to be in the vocabulary: nothing is read back to check them."""
        return torch.nn.functional.embedding(token_ids, self._table)

    def _image_rows(self, batch: ForwardBatch, mask: torch.Tensor) -> torch.Tensor:
        wanted = (int(mask.sum()), self._table.shape[1])
        if batch.image_embeddings is None:
            if wanted[0] == 0:
                return self._table.new_zeros(wanted)
            raise RequestError(f"image_mask marks {wanted[0]} rows but image_embeddings is None")
        if tuple(batch.image_embeddings.shape) != wanted:
            raise RequestError(
                f"image_embeddings has shape {tuple(batch.image_embeddings.shape)}; image_mask needs {wanted}"
            )
        return self._numerics.bf16(batch.image_embeddings.to(self._numerics.dtype))


class Head:
    """Trunk to final hidden rows, and those to logits."""

    def __init__(self, norm: torch.Tensor, weight: torch.Tensor, *, norm_eps: float, numerics: Numerics) -> None:
        """norm: [h]; weight: [V, h]"""
        self._norm = norm
        self._weight = weight
        self._norm_eps = norm_eps
        self._numerics = numerics

    def final_hidden(self, trunk: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        """Normed rows [T, h] from the last layer's trunk [T, m, h] and reading weights [T, m]."""
        return self.normed(collapse(trunk, read, self._numerics))

    def normed(self, rows: torch.Tensor) -> torch.Tensor:
        """The final norm of collapsed rows [n, h]."""
        n = self._numerics
        return n.bf16(n.ops.rms_norm(rows, self._norm, self._norm_eps))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [n, V]."""
        logits: torch.Tensor = self._numerics.ops.matmul(hidden, self._weight).float()
        return logits
