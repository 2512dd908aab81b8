"""Ops of the draft layers for training: differentiable, many rows at once, and without a word to the host.

A whole training step can be recorded in a CUDA graph because nothing here reads a value back. What is not here is the
reference. Letters: n rows of h columns, E experts, H heads of D columns, K keys of a row.
"""

from __future__ import annotations

import torch
from tools.train.backbone import streams
from tools.train.evaluate.ops import bind_with
from torch import Tensor

from thalweg.kernels import BoundOps


def training_ops() -> BoundOps:
    """Torch ops for any device. Weights come as values: see `masters.MasterSource`."""
    return bind_with(
        {
            "rms_norm": rms_norm,
            "gate_scores": gate_scores,
            "route": route,
            "swiglu": swiglu,
            "sparse_attention": sparse_attention,
            "hc_mixes": streams.mixes,
            "hc_coefficients": streams.coefficients,
            "hc_collapse": streams.collapse,
            "hc_expand": streams.expand,
            "confidence": confidence,
            "dequantize_fp8_weight": value_of,
            "dequantize_mxfp4": value_of,
        }
    )


def value_of(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """What stands for codes and scales is the value itself."""
    del scales
    return values.to(dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., k] over its root mean square, times weight [k]."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def gate_scores(logits: Tensor) -> Tensor:
    """sqrt(softplus(logits)) [n, E]."""
    return torch.nn.functional.softplus(logits).sqrt()


def route(
    scores: Tensor,
    bias: Tensor,
    topk: int,
    scaling: float,
    image_bias: Tensor | None = None,
    image_mask: None = None,
    valid_mask: None = None,
) -> tuple[Tensor, Tensor]:
    """Ids int64 [n, topk] by scores [n, E] + bias [E], and weights [n, topk] of the scores alone."""
    del image_bias, image_mask, valid_mask  # rows of a draft block are text, and in training all are somebody's
    ids = (scores + bias).detach().topk(topk).indices
    selected = scores.gather(-1, ids)
    return ids, selected / (selected.sum(-1, keepdim=True) + 1e-20) * scaling


def swiglu(gate: Tensor, up: Tensor, limit: float, weights: Tensor) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, +-limit) * weights; gate and up [..., I], weights [...]."""
    gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(gate) * up.clamp(-limit, limit) * weights.unsqueeze(-1)


def sparse_attention(q: Tensor, keys: Tensor, indices: Tensor, sink: Tensor, scale: float) -> Tensor:
    """Output [n, H, D] of q [n, H, D] over rows `indices` [n, K] of keys [S, D], -1 for none; values are the keys."""
    # index_select, because its gradient adds rows up where they lie; that of indexing sorts them first.
    gathered = keys.index_select(0, indices.clamp(min=0).flatten()).view(*indices.shape, -1)
    logits = (q @ gathered.mT * scale).masked_fill(indices.unsqueeze(1) < 0, -torch.inf)
    level = torch.maximum(logits.detach().amax(-1), sink.detach()).unsqueeze(-1)
    mass = torch.exp(logits - level)
    total = mass.sum(-1, keepdim=True) + torch.exp(sink.unsqueeze(-1) - level)
    return (mass / total) @ gathered


def confidence(hidden: Tensor, markov: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """float32 [n] of hidden [n, h], the Markov rows [n, r] before them, and weight [h + r]."""
    logit = torch.cat([hidden, markov], dim=-1) @ weight
    return torch.sigmoid((logit / temperature).clamp(-60, 60)).float()
