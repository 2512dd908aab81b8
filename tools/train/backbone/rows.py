"""Row-wise ops of a training pass: the equations of the reference in float32, rounded once to the input's dtype."""

from __future__ import annotations

import torch
from tools.train.common.compiled import Compiled
from torch import Tensor

from thalweg.kernels.reference.engram import GATE_FLOOR
from thalweg.kernels.reference.numerics import split_last


@Compiled
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [n, k] by its root mean square, scaled with weight [k]."""
    value = x.float()
    return (value * torch.rsqrt(value.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


@Compiled
def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """x [n, D] or [n, H, D] with its last columns rotated in neighbouring pairs; cos and sin [n, d / 2]."""
    width = 2 * cos.shape[-1]
    if x.dim() == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    kept, turned = x[..., :-width], split_last(x[..., -width:].float(), 2)
    first, second = turned[..., 0], turned[..., 1]
    if inverse:
        sin = -sin
    rotated = torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2)
    return torch.cat((kept, rotated.to(x.dtype)), -1)


@Compiled
def pool_groups(score: Tensor, latent: Tensor) -> Tensor:
    """[n, D] of scores and latents [n, r, D]: per channel the mean with softmax weights."""
    return (torch.softmax(score, -2) * latent).sum(-2)


@Compiled
def gate_scores(logits: Tensor) -> Tensor:
    """sqrt(softplus(logits)) float32 [n, E]."""
    return torch.sqrt(torch.nn.functional.softplus(logits))


@Compiled
def engram_gate(x: Tensor, keys: Tensor, query_weight: Tensor, key_weight: Tensor, eps: float) -> Tensor:
    """Gate float32 [n, m] of every stream: x and keys [n, m, h], weights [m, h]."""
    x, keys = x.float(), keys.float()
    dot = (x * keys * (query_weight.float() * key_weight.float())).sum(-1)
    dot = dot * torch.rsqrt(x.square().mean(-1) + eps) * torch.rsqrt(keys.square().mean(-1) + eps) * x.shape[-1] ** -0.5
    return torch.sigmoid(torch.copysign(torch.sqrt(dot.abs().clamp(min=GATE_FLOOR)), dot))


@Compiled
def engram_apply(x: Tensor, value: Tensor, gate: Tensor) -> Tensor:
    """x [n, m, h] plus gate [n, m] times value [n, h]."""
    return (x.float() + gate.unsqueeze(-1) * value.float().unsqueeze(1)).to(x.dtype)


@Compiled
def target_feature(trunk: Tensor) -> Tensor:
    """The mean [n, h] over the streams of the trunk [n, m, h]."""
    return trunk.float().mean(1).to(trunk.dtype)


@Compiled
def token_losses(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Negative log-likelihood float32 [n] of targets int64 [n]: hidden [n, h], head [V, h]."""
    logits = torch.nn.functional.linear(hidden, head).float()
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none")
