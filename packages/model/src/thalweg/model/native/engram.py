"""Engram: rows of a large n-gram table, hashed from the last few compressed token ids, gated into the trunk."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thalweg.kernels import Fp8Weight
from thalweg.model.engram import EngramHash
from thalweg.model.native.state import NativeState
from thalweg.model.native.weights import StoredTable


@dataclass(frozen=True, slots=True)
class Engram:
    """The Engram block of one layer: table rows of d columns, R of them per token, m streams of h columns."""

    layer: int
    hashing: EngramHash
    table: StoredTable
    projection: Fp8Weight
    """[(m+1)h, R*d]: a key per stream, then the value."""
    query_weight: torch.Tensor
    """[m, h]"""
    key_weight: torch.Tensor
    """[m, h]"""
    norm_eps: float

    def __call__(self, trunk: torch.Tensor, state: NativeState) -> torch.Tensor:
        """The trunk [n, m, h] with the gated table value added to every stream; image rows come back unchanged."""
        ops, batch, hashing = state.ops, state.batch, self.hashing
        buckets = ops.engram_hash(
            batch.ngram_ids, hashing.multipliers, hashing.primes, hashing.offsets, batch.image_mask
        )
        state.record("hash", self.layer, buckets)
        embedded = ops.engram_lookup(self.table.codes, self.table.scales, buckets)
        projected = ops.fp8_linear(embedded, self.projection)
        updated: torch.Tensor = ops.engram_update(
            trunk, projected, self.query_weight, self.key_weight, self.norm_eps, batch.image_mask
        )
        return updated
