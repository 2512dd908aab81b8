"""Ops of the frozen backbone: texts of one length, without gradients and without read-backs.

Letters: n rows, S texts of L rows each, G index heads of d columns, M entries of a text, B blocks of them.
"""

from __future__ import annotations

import torch
from tools.train.backbone import experts, streams
from tools.train.evaluate import ops
from torch import Tensor

from thalweg.kernels import BoundOps, default_registry


class ReadingOps(BoundOps):
    """Torch ops for any device, those of the reference where there are no others. Texts lie one after the other."""

    hc_mixes = staticmethod(streams.mixes)
    hc_coefficients = staticmethod(streams.coefficients)
    hc_collapse = staticmethod(streams.collapse)
    hc_expand = staticmethod(streams.expand)
    matmul = staticmethod(ops.matmul)
    sparse_attention = staticmethod(ops.sparse_attention)

    def __init__(self) -> None:
        super().__init__(default_registry(), "cpu", {}, False, None, {})
        self.num_texts = 1
        """S of the pass that runs next."""

    def route(
        self, scores: Tensor, bias: Tensor, topk: int, scaling: float, **masks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As the reference, for text."""
        return experts.route_rows(scores, bias, topk, scaling)[:2]

    def indexer_scores(self, q: Tensor, weights: Tensor, keys: Tensor, begin: Tensor, end: Tensor) -> Tensor:
        """[n, M], -inf past a row's own entries: q [n, G, d], weights [n, G], keys [S * M, d], begin and end [n]."""
        own = keys.view(self.num_texts, -1, keys.shape[1])
        products = torch.relu(q.view(self.num_texts, -1, q.shape[2]) @ own.mT).view(*q.shape[:2], -1)
        scores = (weights.unsqueeze(1) @ products).squeeze(1)
        return scores.masked_fill(torch.arange(own.shape[1], device=q.device) >= (end - begin)[:, None], -torch.inf)

    def select_topk(self, scores: Tensor, visible: Tensor, k: int) -> Tensor:
        """Ids int32 [n, k] of the largest scores [n, M], in any order; -1 where there are no more."""
        best = scores.topk(min(k, scores.shape[1]))
        ids = torch.where(best.values == -torch.inf, -1, best.indices).int()
        return torch.nn.functional.pad(ids, (0, k - ids.shape[1]), value=-1)

    def select_candidate_blocks(self, scores: Tensor, visible: Tensor, block_size: int, topk_blocks: int) -> Tensor:
        """The same for blocks, scores [n, B]."""
        return self.select_topk(scores, visible, topk_blocks)
