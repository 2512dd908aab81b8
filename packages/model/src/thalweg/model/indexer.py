"""The indexer of an index-source layer: scores the entries of a stream and selects the ones to attend to."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch

from thalweg.interfaces import InvariantError
from thalweg.model.forward_state import ForwardState
from thalweg.model.numerics import Numerics


class CandidateRole(enum.Enum):
    """What a layer does with candidate blocks."""

    NONE = enum.auto()
    PUBLISH = enum.auto()
    RESTRICT = enum.auto()


@dataclass(frozen=True, slots=True)
class IndexKeyProjection:
    """How an index-key source turns latents into index keys."""

    weight: torch.Tensor
    """[d, D]"""
    norm: torch.Tensor
    """[d]"""


class Indexer:
    """Selection of one layer; G index heads of d columns."""

    def __init__(
        self,
        layer: int,
        ratio: int,
        key_source: int,
        query_projection: torch.Tensor,
        head_weights: torch.Tensor,
        key_projection: IndexKeyProjection | None,
        *,
        num_heads: int,
        topk: int,
        candidates: CandidateRole,
        block_size: int,
        topk_blocks: int,
        norm_eps: float,
        numerics: Numerics,
    ) -> None:
        """query_projection: [G*d, q_lora]; head_weights: [G, h]; key_projection: only where `key_source` is `layer`."""
        self._layer = layer
        self._ratio = ratio
        self._key_source = key_source
        self._query_projection = query_projection
        self._head_weights = head_weights
        self._key_projection = key_projection
        self._num_heads = num_heads
        self._topk = topk
        self._candidates = candidates
        self._block_size = block_size
        self._topk_blocks = topk_blocks
        self._norm_eps = norm_eps
        self._numerics = numerics

    def write_keys(self, state: ForwardState) -> None:
        """Add index keys of this pass's entries, projected from their unrotated latents."""
        if self._key_projection is None:
            return
        if state.latents is None:
            raise InvariantError(f"layer {self._layer} makes index keys before any KV source made latents")
        n = self._numerics
        keys = n.linear(state.latents.detach(), self._key_projection.weight)
        keys = n.bf16(n.ops.rms_norm(keys, self._key_projection.norm, self._norm_eps))
        state.memory.append_index_keys(self._layer, state.entry_rotary(self._ratio).rotate(keys))

    def select(self, hidden: torch.Tensor, query_latent: torch.Tensor, state: ForwardState) -> None:
        """Publish the selection of every row.

        hidden: [T, h] normed rows; query_latent: [T, q_lora] normed and quantised. Ids carry no gradient, scores one to
        the indexer's own weights only: an op may give them a loss, and the rest of the model is not touched.
        """
        n, ops = self._numerics, self._numerics.ops
        hidden, query_latent = hidden.detach(), query_latent.detach()
        queries = n.linear(query_latent, self._query_projection).view(hidden.shape[0], self._num_heads, -1)
        queries = n.mxfp4(state.row_rotary(self._ratio).rotate(queries))
        head_weights = n.linear(hidden, self._head_weights)
        keys, begin, end = state.memory.index_keys(self._key_source)
        scores = n.bf16(ops.indexer_scores(queries, head_weights, keys, begin, end)).detach()
        visible = end - begin
        if self._candidates is CandidateRole.PUBLISH:
            block_scores = ops.block_scores(scores, visible, self._block_size)
            state.blocks = ops.select_candidate_blocks(block_scores, visible, self._block_size, self._topk_blocks)
            if state.trace is not None:
                state.trace.record("blocks", self._layer, state.blocks)
        elif self._candidates is CandidateRole.RESTRICT:
            if state.blocks is None:
                raise InvariantError(f"layer {self._layer} restricts its selection before any blocks were published")
            scores = ops.restrict_to_blocks(scores, state.blocks, self._block_size)
        state.selection = ops.select_topk(scores, visible, self._topk)
        if state.trace is not None:
            state.trace.record("topk", self._layer, state.selection)
