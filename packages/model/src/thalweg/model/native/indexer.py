"""The indexer of an index-source layer: scores the entries of a stream and selects the ones to attend to."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thalweg.interfaces import InvariantError
from thalweg.kernels import Fp8Weight, Mxfp8Rows
from thalweg.model.indexer import CandidateRole
from thalweg.model.native.memory import IndexQueries, KeyNorm
from thalweg.model.native.state import NativeState


@dataclass(frozen=True, slots=True)
class IndexKeyProjection:
    """How an index-key source turns latents into index keys."""

    weight: torch.Tensor
    """bfloat16 [d, D]"""
    norm: KeyNorm


@dataclass(frozen=True, slots=True)
class Indexer:
    """Selection of one layer; G index heads of d columns."""

    layer: int
    ratio: int
    key_source: int
    query_projection: Fp8Weight
    """[G*d, q_lora]"""
    head_weights: torch.Tensor
    """bfloat16 [G, h]"""
    key_projection: IndexKeyProjection | None
    """Only where `key_source` is `layer`."""
    num_heads: int
    topk: int
    candidates: CandidateRole
    block_size: int
    topk_blocks: int

    def write_keys(self, state: NativeState) -> None:
        """Add index keys of this pass's entries, projected from their unrotated latents."""
        if self.key_projection is None:
            return
        if state.latents is None:
            raise InvariantError(f"layer {self.layer} makes index keys before any KV source made latents")
        rows = state.ops.bf16_linear(state.latents, self.key_projection.weight, torch.bfloat16)
        state.memory.write_index_keys(self.layer, rows, self.key_projection.norm, state.entry_rotary(self.ratio))

    def select(self, rows: torch.Tensor, query_latent: Mxfp8Rows, state: NativeState) -> None:
        """Publish the selection of every row. rows: bfloat16 [T, h], normed; query_latent: [T, q_lora]."""
        queries = self._queries(rows, query_latent, state)
        parts = state.memory.score_parts(self.key_source)
        if self.candidates is CandidateRole.RESTRICT:
            state.selection = _joined([self._restricted(queries, part, state) for part in parts])
        else:
            chosen = [self._unrestricted(queries, part, state) for part in parts]
            state.selection = _joined([selection for selection, _ in chosen])
            if self.candidates is CandidateRole.PUBLISH:
                state.blocks = _joined([blocks for _, blocks in chosen if blocks is not None])
                state.record("blocks", self.layer, state.blocks)
        state.record("topk", self.layer, state.selection)

    def _queries(self, rows: torch.Tensor, query_latent: Mxfp8Rows, state: NativeState) -> IndexQueries:
        ops, rotary = state.ops, state.row_rotary(self.ratio)
        queries = ops.fp8_linear(query_latent, self.query_projection).view(rows.shape[0], self.num_heads, -1)
        codes, scales = ops.rotate_quantize_mxfp4(queries, rotary.cos, rotary.sin)
        return IndexQueries(codes, scales, ops.bf16_linear(rows, self.head_weights, torch.bfloat16))

    def _unrestricted(
        self, queries: IndexQueries, part: slice, state: NativeState
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Selection among all visible entries, and the candidate blocks where the layer publishes them."""
        ops, visible = state.ops, state.memory.visible(self.ratio)[part]
        scores = state.memory.scores(self.key_source, queries.at(part), part)
        blocks = None
        if self.candidates is CandidateRole.PUBLISH:
            best = ops.block_scores(scores, visible, self.block_size)
            blocks = ops.select_candidate_blocks(best, visible, self.block_size, self.topk_blocks)
        return ops.select_topk(scores, visible, self.topk), blocks

    def _restricted(self, queries: IndexQueries, part: slice, state: NativeState) -> torch.Tensor:
        """Selection among the entries of the published blocks: no other entry is scored."""
        if state.blocks is None:
            raise InvariantError(f"layer {self.layer} restricts its selection before any blocks were published")
        ops, visible, blocks = state.ops, state.memory.visible(self.ratio)[part], state.blocks[part]
        scores = state.memory.candidate_scores(self.key_source, queries.at(part), blocks, self.block_size, part)
        lengths = ops.compact_lengths(blocks, visible, self.block_size)
        compact = ops.select_topk(scores, lengths, self.topk)
        selection: torch.Tensor = ops.restore_indices(compact, blocks, self.block_size)
        return selection


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
