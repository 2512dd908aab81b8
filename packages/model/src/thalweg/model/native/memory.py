"""What attention remembers, on stored bytes: the contract between the layers and whatever keeps records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from thalweg.model.native.rope import RotaryRows


class IndexQueries(NamedTuple):
    """Index queries of n rows in MXFP4: G heads of d columns."""

    codes: torch.Tensor
    """uint8 [n, G, d / 2]"""
    scales: torch.Tensor
    """uint8 [n, G, d / 32]"""
    head_weights: torch.Tensor
    """bfloat16 [n, G]"""

    def at(self, rows: slice) -> IndexQueries:
        """Those of some rows."""
        return IndexQueries(self.codes[rows], self.scales[rows], self.head_weights[rows])


class KeyNorm(NamedTuple):
    """How projected rows become keys: normed, rotated, cast and stored."""

    weight: torch.Tensor
    """[D]"""
    eps: float


class NativeMemory(Protocol):
    """Records of all layers for the T rows of one forward pass.

    D head dim, E entries of one stream that the pass completes, k selected entries per row. Rows to be stored come as a
    linear left them, bfloat16 and possibly a slice of wider ones.
    """

    def entry_positions(self, ratio: int) -> torch.Tensor:
        """int [E]: first position of each entry that streams of this ratio gain; 0 for a filler row."""

    def write_window(self, layer: int, rows: torch.Tensor, norm: KeyNorm, rotary: RotaryRows) -> None:
        """Remember the window keys [T, D] of a layer; `attend` for the same layer comes next."""

    def pool(self, layer: int, score: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        """Remember scores and latents float32 [T, D] of a pooling layer; the pooled rows [E, D] of completed groups."""

    def write_main(self, layer: int, rows: torch.Tensor, norm: KeyNorm, rotary: RotaryRows) -> torch.Tensor:
        """Add entries [E, D] to the stream of a KV-source layer; their latents, normed and not rotated."""

    def write_index_keys(self, layer: int, rows: torch.Tensor, norm: KeyNorm, rotary: RotaryRows) -> None:
        """Add index keys [E, d] of an index-key-source layer."""

    def visible(self, ratio: int) -> torch.Tensor:
        """int32 [T]: number of entries of a stream of this ratio that each row may see."""

    def score_parts(self, layer: int) -> Sequence[slice]:
        """The rows cut so that the scores of one part with the keys of a layer are of bounded size."""

    def scores(self, layer: int, queries: IndexQueries, rows: slice) -> torch.Tensor:
        """bfloat16 [n, M]: scores of some rows with the index keys of a layer; columns that they may not see are
        undefined.
        """

    def candidate_scores(
        self, layer: int, queries: IndexQueries, blocks: torch.Tensor, block_size: int, rows: slice
    ) -> torch.Tensor:
        """bfloat16 [n, C * block_size]: scores of some rows with the entries of their blocks int32 [n, C] alone."""

    def attend(
        self,
        layer: int,
        kv_source: int | None,
        queries: torch.Tensor,
        selection: torch.Tensor | None,
        sink: torch.Tensor,
    ) -> torch.Tensor:
        """Attention output bfloat16 [T, H, D] over window and selected entries.

        queries: rotated, bfloat16 [T, H, D]. kv_source, selection: the stream that is read and int32 [T, k] entries of
        it, -1 = none; None for a layer that reads nothing but windows. sink: float32 [H].
        """
