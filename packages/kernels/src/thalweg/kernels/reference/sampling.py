"""The draw of a token: from weights, and from logits with the parameters of a request.

A row's result depends on that row alone. Letters: n rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.choice import choose_tokens
from thalweg.kernels.reference.filters import check_filters
from thalweg.kernels.reference.numerics import check_floats, check_shape
from thalweg.kernels.reference.random_numbers import FRESH, check_streams, uniform
from thalweg.kernels.reference.vocabulary_rows import in_pieces


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """Token ids int32 [n] drawn from weights float32 [n, V] of any total with uniform numbers u float64 [n].

    The first id whose running float64 sum exceeds u times the total; if rounding leaves none, the last id of positive
    weight. -1 where the total is zero or not finite: the caller decides what that means.
    """
    check_floats("weights", weights, ("n", "V"))
    check_shape("u", u, (weights.shape[0],))
    if u.dtype != torch.float64:
        raise ConfigError(f"u has dtype {u.dtype}; float64 is required")
    if weights.shape[1] == 0:
        raise ConfigError("weights have no columns; at least one token is required")
    return in_pieces(lambda *piece: _draw(piece[0], None, piece[1]), weights, u)


def _draw(weights: Tensor, ids: Tensor | None, stream: Tensor) -> Tensor:
    """`draw` as a rule; stream: the uniform numbers."""
    del ids  # tokens without weight do not change a running sum
    vocabulary = weights.shape[1]
    sums = weights.to(torch.float64, copy=True).cumsum_(-1)
    total = sums[:, -1]
    token = torch.searchsorted(sums, (stream * total).unsqueeze(-1), right=True).squeeze(-1)
    if weights.device.type != "cpu" or bool((token == vocabulary).any()):
        last_positive = vocabulary - 1 - (weights.flip(-1) > 0).to(torch.int8).argmax(-1)
        token = torch.where(token < vocabulary, token, last_positive)
    return torch.where((total > 0) & torch.isfinite(total), token, -1).int()


def sample_tokens(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Fresh token ids int32 [n]: the argmax on greedy rows, elsewhere a draw from filtered_logprobs.

    Arguments as for filtered_logprobs; seeds uint64 or int64 [n], positions int [n]. -1 where a row has no finite
    largest logit.
    """
    check_filters(logits, temperature, top_p, top_k, min_p)
    check_streams(logits.shape[0], seeds, positions)
    u = uniform(seeds, positions, FRESH)
    return choose_tokens(_draw, logits, temperature, top_p, top_k, min_p, u)


OPS: dict[str, Callable[..., Any]] = {"draw": draw, "sample_tokens": sample_tokens}
