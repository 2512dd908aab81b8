"""What a cached drafter asks of a draft network."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from thalweg.interfaces import CacheViews
from thalweg.kernels import DraftIndices
from thalweg.model.config import ModelConfig
from thalweg.model.numerics import Numerics


class BlockNetwork(Protocol):
    """Draft layers that run over blocks of rows. T rows, N blocks of G rows, h hidden size, r Markov rank, V tokens."""

    @property
    def config(self) -> ModelConfig:
        """Of the checkpoint."""

    @property
    def numerics(self) -> Numerics:
        """The mode, which decides the records of the cache, and the ops."""

    def write_main_keys(
        self, features: torch.Tensor, positions: torch.Tensor, views: CacheViews, slots: torch.Tensor
    ) -> None:
        """Store the window keys of every draft layer for rows that the target model has processed.

        features: [T, L * h] of `TargetFeatures`; positions: int64 [T]; slots: int [T] flat ring slots, -1 = none.
        """

    def block_memory(self, views: CacheViews, indices: DraftIndices) -> Any:
        """Where the rows of a block write their keys and which they read; indices: of the op `draft_metadata`."""

    def block_rows(
        self, token_ids: torch.Tensor, positions: torch.Tensor, is_valid: torch.Tensor, memory: Any
    ) -> torch.Tensor:
        """Collapsed rows [n, h] of the block rows, before the final norm.

        token_ids, positions: int64 [n]; is_valid: bool [n], false on rows of nobody; memory: of `block_memory`.
        """

    def base_logits(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [n, V] for collapsed rows [n, h], before the Markov bias."""

    def markov_rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[n, r] of the tokens int [n] that precede the drafts."""

    def biased(self, base_logits: torch.Tensor, markov_rows: torch.Tensor) -> torch.Tensor:
        """float32 [n, V]: base logits with the Markov bias of the token before."""

    def confidences(self, rows: torch.Tensor, markov_rows: torch.Tensor, temperature: float) -> torch.Tensor:
        """float32 [n]: how sure the drafter is, from collapsed rows [n, h] and the Markov rows [n, r] before them."""
