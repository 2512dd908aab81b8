"""Attention over a sliding window and, in most layers, selected entries of a compressed key stream.

Keys and values are the same vectors, shared by all heads. The projections are low-rank on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from thalweg.interfaces import InvariantError
from thalweg.model.compressor import Compressor
from thalweg.model.forward_state import ForwardState
from thalweg.model.indexer import Indexer
from thalweg.model.numerics import Numerics


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Weights of the common part; H heads of D columns in G output groups."""

    down: torch.Tensor
    """[q_lora + D, h]: the query's low-rank projection, then the window key's."""
    query_norm: torch.Tensor
    """[q_lora]"""
    query_up: torch.Tensor
    """[H*D, q_lora]"""
    key_norm: torch.Tensor
    """[D]"""
    sink: torch.Tensor
    """[H] final logits that only enlarge the softmax denominator."""
    group_outputs: Sequence[torch.Tensor]
    """G of [o_lora, H/G*D]"""
    output: torch.Tensor
    """[h, G*o_lora]"""


class Attention:
    """The attention sub-layer of one layer."""

    def __init__(
        self,
        layer: int,
        ratio: int,
        kv_source: int | None,
        weights: AttentionWeights,
        compressor: Compressor | None,
        indexer: Indexer | None,
        *,
        num_heads: int,
        norm_eps: float,
        numerics: Numerics,
    ) -> None:
        """kv_source: the layer whose stream is read, None for ratio 0."""
        self._layer = layer
        self._ratio = ratio
        self._kv_source = kv_source
        self._weights = weights
        self._compressor = compressor
        self._indexer = indexer
        self._num_heads = num_heads
        self._norm_eps = norm_eps
        self._numerics = numerics
        self._head_dim = weights.key_norm.shape[0]

    def write_streams(self, hidden: torch.Tensor, state: ForwardState) -> None:
        """Complete the paged state of every row: stream entries and index keys. hidden: [T, h] normed rows."""
        if self._compressor is not None:
            self._compressor.write(hidden, state)
        if self._indexer is not None:
            self._indexer.write_keys(state)

    def __call__(self, hidden: torch.Tensor, state: ForwardState) -> torch.Tensor:
        """The output rows [T, h] for normed rows [T, h]; `write_streams` must have seen them before."""
        n, ops, w = self._numerics, self._numerics.ops, self._weights
        rotary = state.row_rotary(self._ratio)
        low = n.linear(n.mxfp8(hidden), w.down)
        query_low, key = low[:, : -self._head_dim], low[:, -self._head_dim :]
        query_latent = n.mxfp8(n.bf16(ops.rms_norm(query_low, w.query_norm, self._norm_eps)))
        queries = n.linear(query_latent, w.query_up).view(-1, self._num_heads, self._head_dim)
        queries = rotary.rotate(queries)
        window_keys = rotary.rotate(n.bf16(ops.rms_norm(key, w.key_norm, self._norm_eps)))
        if self._indexer is not None:
            self._indexer.select(hidden, query_latent, state)
        keys, indices = self._visible_keys(window_keys, state)
        attended = n.bf16(self._attend(queries, keys, indices))
        return self._project(rotary.rotate_back(attended))

    def _attend(self, queries: torch.Tensor, keys: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """[T, H, D]. Rows that share a list of keys are one row of all their heads, so that keys are fetched once."""
        lists = indices.shape[0]
        shared = max(queries.shape[0] // max(lists, 1), 1)
        joined = queries.reshape(lists, shared * self._num_heads, self._head_dim)
        sink = self._weights.sink.repeat(shared)
        attended: torch.Tensor = self._numerics.ops.sparse_attention(joined, keys, indices, sink, self._head_dim**-0.5)
        return attended.reshape(queries.shape)

    def _visible_keys(self, window_keys: torch.Tensor, state: ForwardState) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [S, D] and each row's (or s rows') indices into them: window first, then selected entries, -1 fill.

        Every row has the same number of columns in every batch, so that its sums are formed in the same order.
        """
        keys, indices = state.memory.window(self._layer, window_keys)
        if self._kv_source is None:
            return keys, indices
        if state.selection is None:
            raise InvariantError(f"layer {self._layer} reads a selection before any indexer made one")
        entries, entry_indices = state.memory.selected_main(self._kv_source, state.selection)
        joined = self._numerics.ops.cat_kv_indices(indices, entry_indices, keys.shape[0])
        return torch.cat([keys, entries]), joined

    def _project(self, attended: torch.Tensor) -> torch.Tensor:
        n, w = self._numerics, self._weights
        grouped = n.mxfp8(attended.flatten(1)).chunk(len(w.group_outputs), dim=-1)
        middle = [n.linear(rows, weight) for rows, weight in zip(grouped, w.group_outputs, strict=True)]
        return n.linear(n.mxfp8(torch.cat(middle, dim=-1)), w.output)
