"""Coupled draws: a token depends on its request's seed, its own index and its own distribution alone.

Drafts can only guess such a token, so how many there were, and where the steps were cut, changes nothing about the
text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.choice import choose_tokens
from thalweg.kernels.reference.filters import check_filters
from thalweg.kernels.reference.numerics import check_floats
from thalweg.kernels.reference.random_numbers import (
    FRESH,
    GAMMA,
    check_streams,
    hash_input,
    splitmix_hash,
    unit_interval,
)
from thalweg.kernels.reference.vocabulary_rows import in_pieces


def coupled_draw(weights: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Token ids int32 [n]: the first arrival of a race in which token v needs -log(1 - u_v) / weights[v].

    weights: float32 [n, V], 0 or more, of total 1. seeds: uint64 or int64 [n]. positions: int [n], index of the token
    itself. u_v is output v of SplitMix64 started at the hash of (seed, position). The lowest id wins a tie; -1 where no
    weight is positive.
    """
    check_floats("weights", weights, ("n", "V"))
    if weights.shape[1] == 0:
        raise ConfigError("weights have no columns; at least one token is required")
    check_streams(weights.shape[0], seeds, positions)
    return in_pieces(lambda *piece: _first_arrivals(piece[0], None, piece[1]), weights, _start(seeds, positions))


def _start(seeds: Tensor, positions: Tensor) -> Tensor:
    """int64 [n], where the random numbers of each row start."""
    return splitmix_hash(hash_input(seeds, positions, FRESH))


def _first_arrivals(weights: Tensor, ids: Tensor | None, stream: Tensor) -> Tensor:
    """`coupled_draw` as a rule; stream: where the random numbers start."""
    if ids is None:
        ids = torch.arange(weights.shape[1], dtype=torch.int64, device=weights.device)
    u = unit_interval(splitmix_hash(stream[:, None] + ids * GAMMA))
    arrival = torch.log1p(u.neg_()).neg_().div_(weights).masked_fill_(weights <= 0, torch.inf)
    token = arrival.argmin(-1, keepdim=True)  # the first of several
    return torch.where(torch.isfinite(arrival.gather(-1, token)), token, -1).squeeze(-1).int()


def coupled_tokens(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Token ids int32 [n]: the argmax on greedy rows, elsewhere a coupled draw from filtered_logprobs.

    Arguments as for sample_tokens; positions int [n] are the index of each row's own token. -1 where a row has no
    finite largest logit.
    """
    check_filters(logits, temperature, top_p, top_k, min_p)
    check_streams(logits.shape[0], seeds, positions)
    return choose_tokens(_first_arrivals, logits, temperature, top_p, top_k, min_p, _start(seeds, positions))


OPS: dict[str, Callable[..., Any]] = {"coupled_draw": coupled_draw, "coupled_tokens": coupled_tokens}
