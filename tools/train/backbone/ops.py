"""The ops of a training pass: those of the reference, differentiable, for whole batches at once, without read-backs.

What attention and indexers share of a pass has the shapes of `TrainingMemory`: masks and lists are [B, S, ...] for B
sequences of S tokens.
"""

from __future__ import annotations

import torch
from tools.train.backbone import experts, indexer, rows, streams
from tools.train.backbone.attention import dense_attention, listed_attention, window_attention
from tools.train.backbone.memory import TrainingMemory
from tools.train.backbone.products import wide_product
from torch import Tensor

from thalweg.interfaces import InvariantError
from thalweg.kernels import BoundOps, YarnScaling, default_registry
from thalweg.kernels.reference.rope import inverse_frequencies


class TrainingOps(BoundOps):
    """Ops that are not defined here are the reference's own."""

    hc_mixes = staticmethod(streams.mixes)
    hc_coefficients = staticmethod(streams.coefficients)
    hc_collapse = staticmethod(streams.collapse)
    hc_expand = staticmethod(streams.expand)
    rms_norm = staticmethod(rows.rms_norm)
    apply_rope = staticmethod(rows.apply_rope)
    pool_groups = staticmethod(rows.pool_groups)
    gate_scores = staticmethod(rows.gate_scores)
    engram_gate = staticmethod(rows.engram_gate)
    target_feature = staticmethod(rows.target_feature)
    matmul = staticmethod(wide_product)

    def __init__(self, device: torch.device) -> None:
        super().__init__(default_registry(), "cpu", {}, False, None, {})
        self._device = device
        self._memory: TrainingMemory | None = None

    def begin(self, memory: TrainingMemory) -> None:
        """The memory of the pass that runs from now on."""
        self._memory = memory

    @property
    def memory(self) -> TrainingMemory:
        """That of the running pass."""
        if self._memory is None:
            raise InvariantError("an op of a training pass was called before any pass began")
        return self._memory

    def inverse_frequencies(self, dim: int, theta: float, yarn: YarnScaling | None = None) -> Tensor:
        """As the reference, on the device of the pass."""
        return inverse_frequencies(dim, theta, yarn).to(self._device)

    def engram_apply(self, x: Tensor, value: Tensor, gate: Tensor, image_mask: Tensor | None = None) -> Tensor:
        """As the reference; there are no images."""
        return rows.engram_apply(x, value, gate)

    def route(
        self, scores: Tensor, bias: Tensor, topk: int, scaling: float, **masks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As the reference, for text; the memory keeps how many rows each expert has."""
        ids, weights, load = experts.route_rows(scores, bias, topk, scaling)
        self.memory.loads.append((bias, load))
        return ids, weights

    def indexer_scores(self, queries: Tensor, head_weights: Tensor, keys: Tensor, begin: Tensor, end: Tensor) -> Tensor:
        """float32 [B, S, E]; the memory gets those of the rows to learn from. Nothing but the shape where all is seen.

        queries [T, G, d], head_weights [T, G], keys [B * E, d], end int64 [S].
        """
        shape, blocks = self.memory.shape, self.memory.blocks
        queries = queries.view(shape.batch, shape.length, *queries.shape[1:])
        head_weights = head_weights.view(shape.batch, shape.length, -1)
        keys = keys.view(shape.batch, -1, keys.shape[-1])
        visible = torch.arange(keys.shape[1], device=end.device) < end.unsqueeze(-1)
        if blocks is not None:
            window = self.memory.window_size
            rows = indexer.gather_blocks(queries, blocks, window)
            weights = indexer.gather_blocks(head_weights, blocks, window)
            shown = visible.view(-1, window, visible.shape[-1])[blocks].flatten(0, 1)
            self.memory.study_scores(indexer.scores_of_rows(rows, weights, keys, shown))
        if not shape.is_sparse:
            return queries.new_empty(1, 1, 1).expand(shape.batch, shape.length, keys.shape[1])
        with torch.no_grad():
            return indexer.scores_of_rows(queries, head_weights, keys, visible)

    def block_scores(self, scores: Tensor, visible: Tensor, block_size: int) -> Tensor:
        """As the reference, [B, S, E / block_size]."""
        return indexer.best_of_blocks(scores, visible, block_size) if self.memory.shape.is_sparse else scores

    def select_candidate_blocks(self, scores: Tensor, visible: Tensor, block_size: int, topk_blocks: int) -> Tensor:
        """The chosen blocks as bool [B, S, E / block_size]."""
        if not self.memory.shape.is_sparse:
            return scores
        return indexer.listed(indexer.top_lists(scores, topk_blocks), scores.shape[-1])

    def restrict_to_blocks(self, scores: Tensor, blocks: Tensor, block_size: int) -> Tensor:
        """scores [B, S, E] with -inf outside the chosen blocks."""
        if not self.memory.shape.is_sparse:
            return scores
        return scores.masked_fill(~blocks.repeat_interleave(block_size, -1), -torch.inf)

    def select_topk(self, scores: Tensor, visible: Tensor, k: int) -> Tensor:
        """What layers may attend to: bool [B, S, E], or int64 lists [B, S, k] where the stream is long."""
        shape = self.memory.shape
        batch, length, entries = scores.shape
        if not shape.is_sparse:
            seen = torch.arange(entries, device=visible.device) < visible.unsqueeze(-1)
            return seen.expand(batch, length, entries).contiguous()
        lists = indexer.top_lists(scores, k)
        return lists if entries > shape.dense_entries else indexer.listed(lists, entries)

    def cat_kv_indices(self, window: Tensor, selection: Tensor, num_keys: int) -> Tensor:
        """The selection alone: windows need no indices."""
        return selection

    def sparse_attention(self, queries: Tensor, keys: Tensor, selection: Tensor, sink: Tensor, scale: float) -> Tensor:
        """queries [B, S * H, D], keys [B * S + B * E, D], selection [B, S, ...] or [B, S, 0] -> as queries."""
        shape, window = self.memory.shape, self.memory.window_size
        dim, num_rows = queries.shape[-1], shape.batch * shape.length
        sink = sink[: queries.shape[1] // shape.length]
        rows_of_heads = queries.view(shape.batch, shape.length, -1, dim)
        near = keys[:num_rows].view(shape.batch, shape.length, dim)
        if selection.shape[-1] == 0:
            return window_attention(rows_of_heads, near, sink, window).view(queries.shape)
        entries = keys[num_rows:].view(shape.batch, -1, dim)
        if self.memory.blocks is not None:
            self.memory.study_attention(rows_of_heads, near, entries, sink)
        attend = dense_attention if selection.dtype == torch.bool else listed_attention
        return attend(rows_of_heads, near, entries, selection, sink, window).view(queries.shape)
