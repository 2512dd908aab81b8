"""What is reported of a drawn token: its log-probability, its rivals, and the mass below it.

Letters: T rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_floats, check_integers, sum_last
from thalweg.kernels.reference.vocabulary_rows import in_pieces, leading


def token_logprobs(logprobs: Tensor, token_ids: Tensor) -> Tensor:
    """Log-probability float32 [T] of one token per row; -inf for an id outside the vocabulary.

    logprobs: float32 [T, V]. token_ids: int [T].
    """
    check_floats("logprobs", logprobs, ("T", "V"))
    check_integers("token_ids", token_ids, (logprobs.shape[0],))
    is_known, columns = _columns(logprobs, token_ids)
    return torch.where(is_known, logprobs.gather(1, columns).squeeze(1), -torch.inf)


def top_logprobs(logprobs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of logprobs float32 [T, V], float32 [T, count], and their ids int32 [T, count].

    From the largest to the smallest, the lower id first among equals. Raises ConfigError unless 0 <= count <= V.
    """
    check_floats("logprobs", logprobs, ("T", "V"))
    vocabulary = logprobs.shape[1]
    if not isinstance(count, int) or not 0 <= count <= vocabulary:
        raise ConfigError(f"count is {count}; 0 to {vocabulary}, the size of the vocabulary, are accepted")
    ids = leading(logprobs, count)
    return logprobs.gather(1, ids), ids.int()


def sum_smaller_probs(logprobs: Tensor, token_ids: Tensor) -> Tensor:
    """Mass float32 [T] of the tokens that are less probable than the row's, or as probable with no higher id.

    logprobs: float32 [T, V]. token_ids: int [T]; the token itself counts, and an id outside the vocabulary gives 0.
    """
    check_floats("logprobs", logprobs, ("T", "V"))
    check_integers("token_ids", token_ids, (logprobs.shape[0],))
    return in_pieces(_sum_smaller, logprobs, token_ids)


def _sum_smaller(logprobs: Tensor, token_ids: Tensor) -> Tensor:
    is_known, columns = _columns(logprobs, token_ids)
    own = logprobs.gather(1, columns)
    ids = torch.arange(logprobs.shape[1], device=logprobs.device)
    is_counted = (logprobs < own) | ((logprobs == own) & (ids <= columns))
    mass = sum_last(torch.where(is_counted, torch.exp(logprobs.double()), 0.0))
    return torch.where(is_known, mass, 0.0).float()


def _columns(logprobs: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Which ids bool [T] are in the vocabulary, and the ids as columns int64 [T, 1], 0 for others."""
    is_known = (token_ids >= 0) & (token_ids < logprobs.shape[1])
    return is_known, torch.where(is_known, token_ids, 0).long()[:, None]


OPS: dict[str, Callable[..., Any]] = {
    "token_logprobs": token_logprobs,
    "top_logprobs": top_logprobs,
    "sum_smaller_probs": sum_smaller_probs,
}
