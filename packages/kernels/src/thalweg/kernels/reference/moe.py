"""Expert routing and the clamped SwiGLU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import carried, check_floats, check_shape, check_tensor, sigmoid, softplus

REPLICA_STRIDE = 23333


def gate_scores(logits: Tensor) -> Tensor:
    """sqrt(softplus(logits)) [n, E]."""
    return torch.sqrt(softplus(carried(logits, "logits"))).type_as(logits)


def route(
    scores: Tensor,
    bias: Tensor | None,
    topk: int,
    scaling: float,
    image_bias: Tensor | None = None,
    image_mask: Tensor | None = None,
    valid_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Pick experts by scores [n, E] + bias [E] and weigh them by the scores alone.

    Rows of image_mask [n] use image_bias; rows outside valid_mask [n] get ids -1 and weights 0.
    Returns ids int64 [n, topk] in decreasing biased score (lower id first on ties) and weights [n, topk].
    """
    check_floats("scores", scores, ("n", "E"))
    check_masks(scores, bias, image_bias, image_mask, valid_mask)
    experts = scores.shape[1]
    if not isinstance(topk, int) or not 0 < topk <= experts:
        raise ConfigError(f"topk is {topk}; with {experts} experts it must be 1..{experts}")
    biased = scores
    if bias is not None:
        biased = scores + bias.type_as(scores)
    if image_mask is not None:
        assert image_bias is not None, "check_masks has seen to it"
        biased = torch.where(image_mask.unsqueeze(-1), scores + image_bias.type_as(scores), biased)
    ids = _largest(biased.detach(), topk)
    selected = scores.gather(-1, ids)
    weights = selected / (selected.sum(-1, keepdim=True) + 1e-20) * scaling
    if valid_mask is not None:
        ids = torch.where(valid_mask.unsqueeze(-1), ids, -1)
        weights = torch.where(valid_mask.unsqueeze(-1), weights, 0)
    return ids, weights


def check_masks(
    scores: Tensor, bias: Tensor | None, image_bias: Tensor | None, image_mask: Tensor | None, valid_mask: Tensor | None
) -> None:
    """Raise ConfigError unless biases are [E] and masks bool [n] for scores [n, E]."""
    rows, experts = scores.shape
    if image_mask is not None and image_bias is None:
        raise ConfigError("image_mask was given without image_bias; rows of images need their own bias")
    for name, values in (("bias", bias), ("image_bias", image_bias)):
        if values is not None:
            check_floats(name, values, (experts,))
    for name, mask in (("image_mask", image_mask), ("valid_mask", valid_mask)):
        if mask is not None:
            check_tensor(name, mask, (rows,), torch.bool)


def _largest(scores: Tensor, k: int) -> Tensor:
    """Ids int64 [n, k] of the largest of each row, largest first, lower id first among equals."""
    best = scores.topk(min(k + 1, scores.shape[1]))
    if bool((best.values[:, 1:] == best.values[:, :-1]).any()):
        return torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :k].contiguous()
    return best.indices[:, :k].contiguous()


def choose_replicas(ids: Tensor, to_physical: Tensor, replica_count: Tensor, ep_rank: int) -> Tensor:
    """Physical experts for logical ids int64 [n, k]: row t takes copy (ep_rank + 23333 t) mod replica_count[id].

    to_physical: int [E, copies]; replica_count: int [E]. An id of -1 stays -1.
    """
    known = ids.clamp(min=0)
    turn = ep_rank + REPLICA_STRIDE * torch.arange(ids.shape[0], device=ids.device).unsqueeze(-1)
    copy = turn % replica_count.long()[known]
    return torch.where(ids < 0, -1, to_physical.long()[known, copy])


def swiglu(gate: Tensor, up: Tensor, limit: float, weights: Tensor | None = None) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, +-limit), times weights [n] where given; gate and up [n, I]."""
    check_shape("up", up, tuple(gate.shape))
    g = torch.clamp(carried(gate, "gate"), max=limit)
    u = torch.clamp(carried(up, "up"), min=-limit, max=limit)
    product = g * sigmoid(g) * u
    if weights is not None:
        check_shape("weights", weights, (gate.shape[0],))
        product = product * weights.type_as(product).unsqueeze(-1)
    return product.type_as(gate)


def psum_valid_rows(ends: Tensor, alignment: int, num_rows: int) -> Tensor:
    """Which of num_rows rows of the prefix-sum layout hold a token: ends int [E]; group g starts at an aligned row."""
    if alignment <= 0:
        raise ConfigError(f"alignment is {alignment}; it must be positive")
    ends = ends.long()
    previous = torch.cat((ends.new_zeros(1), ends[:-1]))
    starts = (previous + alignment - 1) // alignment * alignment
    rows = torch.arange(num_rows, device=ends.device).unsqueeze(-1)
    return ((rows >= starts) & (rows < ends)).any(-1)


def swiglu_psum(x: Tensor, limit: float, weights: Tensor, ends: Tensor, alignment: int) -> Tensor:
    """Weighted SwiGLU of x [R, 2I] (gate half, then up half) whose rows follow the prefix-sum layout; gaps are zero."""
    rows, width = x.shape
    if width % 2:
        raise ConfigError(f"x has {width} columns; the gate and up halves need an even number")
    result = swiglu(x[:, : width // 2].float(), x[:, width // 2 :].float(), limit, weights)
    return torch.where(psum_valid_rows(ends, alignment, rows).unsqueeze(-1), result, 0)


OPS: dict[str, Callable[..., Any]] = {
    "gate_scores": gate_scores,
    "route": route,
    "choose_replicas": choose_replicas,
    "swiglu": swiglu,
    "swiglu_psum": swiglu_psum,
}
