"""Engram: rows of a large n-gram table, hashed from the last few compressed token ids, gated into the trunk."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thalweg.model.metadata import ForwardBatch
from thalweg.model.numerics import Numerics
from thalweg.model.trace import Trace


@dataclass(frozen=True, slots=True)
class EngramHash:
    """The integers that turn an n-gram into table rows; N = max n-gram size, R = rows per token."""

    multipliers: torch.Tensor
    """int64 [N]"""
    primes: torch.Tensor
    """int64 [R] bucket sizes, n-gram size major."""
    offsets: torch.Tensor
    """int64 [R] first table row of each bucket."""


class Engram:
    """The Engram block of one layer."""

    def __init__(
        self,
        layer: int,
        hashing: EngramHash,
        table: torch.Tensor,
        projection: torch.Tensor,
        query_weight: torch.Tensor,
        key_weight: torch.Tensor,
        *,
        norm_eps: float,
        numerics: Numerics,
    ) -> None:
        """table: [rows, d]; projection: [(m+1)h, R*d]; query_weight, key_weight: [m, h]."""
        self._layer = layer
        self._hashing = hashing
        self._table = table
        self._projection = projection
        self._query_weight = query_weight
        self._key_weight = key_weight
        self._norm_eps = norm_eps
        self._numerics = numerics

    def __call__(self, trunk: torch.Tensor, batch: ForwardBatch, trace: Trace | None) -> torch.Tensor:
        """The trunk [n, m, h] with the gated table value added to every stream; image rows come back unchanged."""
        n, hashing = self._numerics, self._hashing
        ops = n.ops
        num_rows, streams, hidden = trunk.shape
        buckets = ops.engram_hash(
            batch.ngram_ids, hashing.multipliers, hashing.primes, hashing.offsets, batch.image_mask
        )
        # Table values are MXFP8 already: quantising them again as a linear's input would change nothing.
        embedded = torch.nn.functional.embedding(buckets.clamp(min=0), self._table).flatten(1)
        projected = n.linear(embedded, self._projection).view(num_rows, streams + 1, hidden)
        keys, value = projected[:, :streams], projected[:, streams]
        gate = ops.engram_gate(trunk, keys, self._query_weight, self._key_weight, self._norm_eps)
        if trace is not None:
            trace.record("hash", self._layer, buckets)
            trace.record("engram_gate", self._layer, gate)
        return n.bf16(ops.engram_apply(trunk, value, gate, batch.image_mask))
