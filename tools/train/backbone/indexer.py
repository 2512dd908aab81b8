"""The indexer of a training pass: scores of all rows to select by, and of a few blocks of rows to learn from.

Letters: B sequences of S tokens, G index heads of d columns, E entries of a sequence's stream, W rows of a block.
"""

from __future__ import annotations

import torch
from tools.train.common.compiled import Compiled
from torch import Tensor

from thalweg.kernels.reference.numerics import split_last


@Compiled
def scores_of_rows(queries: Tensor, head_weights: Tensor, keys: Tensor, visible: Tensor) -> Tensor:
    """float32 [B, R, E], -inf where an entry is not visible.

    queries: [B, R, G, d]; head_weights: [B, R, G]; keys: [B, E, d]; visible: bool [R, E].
    """
    batch, rows, heads, _ = queries.shape
    products = (queries.flatten(1, 2) @ keys.mT).view(batch, rows, heads, -1)
    scores = (torch.relu(products.float()) * head_weights.float().unsqueeze(-1)).sum(2)
    return scores.masked_fill(~visible, -torch.inf)


@Compiled
def divergence(mass: Tensor, scores: Tensor, scale: float) -> Tensor:
    """float32 []: KL(mass || softmax(scale * scores)), the mean over rows; mass and scores [B, R, E].

    A row without visible entries has no mass and counts as 0.
    """
    scaled = scores * scale
    level = scaled.detach().amax(-1, keepdim=True).clamp(min=-1e30)
    normaliser = torch.log(torch.exp(scaled - level).sum(-1, keepdim=True).clamp(min=1e-30)) + level
    seen = mass > 0
    chosen = torch.where(seen, scaled, 0.0) - normaliser
    terms = torch.where(seen, mass * (torch.log(mass.clamp(min=1e-30)) - chosen), 0.0)
    return terms.sum(-1).mean()


@Compiled
def gather_blocks(rows: Tensor, blocks: Tensor, window: int) -> Tensor:
    """The rows [B, n * W, ...] of blocks [n] of W rows each of rows [B, S, ...]."""
    return rows.view(rows.shape[0], -1, window, *rows.shape[2:])[:, blocks].flatten(1, 2)


@Compiled
def best_of_blocks(scores: Tensor, visible: Tensor, block_size: int) -> Tensor:
    """As the op block_scores: float32 [B, S, E / block_size]; the last visible block is +inf. visible: int [S]."""
    best = split_last(scores, block_size).amax(-1)
    block = torch.arange(best.shape[-1], device=scores.device)
    last = (visible.unsqueeze(-1) + block_size - 1) // block_size - 1
    return torch.where(block == last, torch.inf, torch.where(block > last, -torch.inf, best))


def top_lists(scores: Tensor, count: int) -> Tensor:
    """int64 [B, S, min(count, M)] columns of the largest finite scores [B, S, M], in any order; -1 fill."""
    best = scores.topk(min(count, scores.shape[-1]), dim=-1, sorted=False)
    return torch.where(torch.isneginf(best.values), -1, best.indices)


def listed(lists: Tensor, width: int) -> Tensor:
    """bool [B, S, width]: true in the columns that lists [B, S, k] names."""
    mask = torch.zeros(*lists.shape[:-1], width + 1, dtype=torch.bool, device=lists.device)
    mask.scatter_(-1, torch.where(lists < 0, width, lists), True)
    return mask[..., :width].contiguous()
