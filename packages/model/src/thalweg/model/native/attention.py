"""Attention over a sliding window and, in most layers, selected entries of a compressed key stream.

Keys and values are the same vectors, shared by all heads. The projections are low-rank on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thalweg.interfaces import InvariantError
from thalweg.kernels import Fp8Weight, Mxfp8Rows, ReadRows
from thalweg.model.native.compressor import Compressor
from thalweg.model.native.indexer import Indexer
from thalweg.model.native.memory import KeyNorm
from thalweg.model.native.state import NativeState


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Weights of the common part; H heads of D columns in G output groups."""

    down: Fp8Weight
    """[q_lora + D, h]: the query's low-rank projection, then the window key's."""
    query_norm: torch.Tensor
    """[q_lora]"""
    query_up: Fp8Weight
    """[H*D, q_lora]"""
    key_norm: torch.Tensor
    """[D]"""
    sink: torch.Tensor
    """float32 [H] final logits that only enlarge the softmax denominator."""
    group_outputs: Fp8Weight
    """[G*o_lora, H/G*D], group after group."""
    output: Fp8Weight
    """[h, G*o_lora]"""


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention sub-layer of one layer."""

    layer: int
    ratio: int
    kv_source: int | None
    """The layer whose stream is read, None for ratio 0."""
    weights: AttentionWeights
    compressor: Compressor | None
    indexer: Indexer | None
    num_heads: int
    head_dim: int
    num_groups: int
    norm_eps: float

    def write_streams(self, rows: ReadRows, state: NativeState) -> None:
        """Complete the paged state of every row: stream entries and index keys."""
        if self.compressor is not None:
            self.compressor.write(rows.rows, state)
        if self.indexer is not None:
            self.indexer.write_keys(state)

    def __call__(self, rows: ReadRows, state: NativeState) -> torch.Tensor:
        """The output rows bfloat16 [T, h] for normed rows; `write_streams` must have seen them before."""
        ops, w, rotary = state.ops, self.weights, state.row_rotary(self.ratio)
        low = ops.fp8_linear(rows.quantized, w.down)
        query_low, key = low[:, : -self.head_dim], low[:, -self.head_dim :]
        query_latent = ops.norm_quantize(query_low, w.query_norm, self.norm_eps)
        queries = ops.fp8_linear(query_latent, w.query_up).view(-1, self.num_heads, self.head_dim)
        ops.rotate_rows(queries, rotary.cos, rotary.sin)
        state.memory.write_window(self.layer, key, KeyNorm(w.key_norm, self.norm_eps), rotary)
        if self.indexer is not None:
            self.indexer.select(rows.rows, query_latent, state)
        selection = None
        if self.kv_source is not None:
            selection = state.selection
            if selection is None:
                raise InvariantError(f"layer {self.layer} reads a selection before any indexer made one")
        attended = state.memory.attend(self.layer, self.kv_source, queries, selection, w.sink)
        grouped = ops.unrotate_quantize(attended, rotary.cos, rotary.sin)
        middle = ops.grouped_fp8_linear(grouped, w.group_outputs, self.num_groups)
        output: torch.Tensor = ops.fp8_linear(Mxfp8Rows(*ops.quantize_mxfp8(middle)), w.output)
        return output
