"""Tokens chosen by a rule from what the filters of each row leave.

Letters: n rows, V vocabulary, c columns that a row may choose from.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from thalweg.kernels.reference.filters import check_filters, filtered_logprobs, is_greedy, temper, tempering
from thalweg.kernels.reference.prefix import Filters
from thalweg.kernels.reference.survivors import find_survivors
from thalweg.kernels.reference.vocabulary_rows import argmax_lowest, in_pieces, log_softmax


class Rule(Protocol):
    """How a row chooses."""

    def __call__(self, weights: Tensor, ids: Tensor | None, stream: Tensor) -> Tensor:
        """Columns int [n] chosen from weights float32 [n, c], negative for none; 0 is never chosen.

        ids: int64 [n, c], the token of each column, ascending while the weight is above 0; None = the column. stream:
        [n], what the row's random numbers come from.
        """
        ...


def choose_tokens(
    rule: Rule,
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    stream: Tensor,
) -> Tensor:
    """Ids int32 [n]: the argmax on greedy rows, elsewhere what the rule chooses from exp(filtered_logprobs).

    -1 where a row has no finite largest logit. On the CPU a filtered row is a list of the few tokens left.
    """
    check_filters(logits, temperature, top_p, top_k, min_p)
    if logits.device.type != "cpu":
        best = argmax_lowest(logits)
        weights = torch.exp(filtered_logprobs(logits, temperature, top_p, top_k, min_p))
        return torch.where(is_greedy(temperature) | (best < 0), best, rule(weights, None, stream).int())
    given = (*tempering(temperature, top_p, top_k, min_p), stream)
    takes_best = is_greedy(temperature) | ~torch.isfinite(logits.amax(-1))
    if not bool(takes_best.any()):
        return in_pieces(lambda *piece: _choose(rule, *piece), logits, *given)
    tokens = torch.empty(logits.shape[0], dtype=torch.int32)
    tokens[takes_best] = argmax_lowest(logits[takes_best])
    if not bool(takes_best.all()):
        rest = ~takes_best
        tokens[rest] = choose_tokens(
            rule, logits[rest], temperature[rest], top_p[rest], top_k[rest], min_p[rest], stream[rest]
        )
    return tokens


def _choose(
    rule: Rule, logits: Tensor, scale: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor, stream: Tensor
) -> Tensor:
    """Ids int32 [n] on the CPU; the largest logits are finite."""
    tempered, filters = temper(logits, scale), Filters(top_p, top_k, min_p)
    is_active = filters.active(logits.shape[1])
    if not bool(is_active.any()):
        return rule(torch.exp(log_softmax(tempered)), None, stream).int()
    if bool(is_active.all()):
        return _choose_listed(rule, tempered, filters, stream)
    tokens = torch.empty(logits.shape[0], dtype=torch.int32)
    tokens[is_active] = _choose_listed(rule, tempered[is_active], filters.of(is_active), stream[is_active])
    tokens[~is_active] = rule(torch.exp(log_softmax(tempered[~is_active])), None, stream[~is_active]).int()
    return tokens


def _choose_listed(rule: Rule, tempered: Tensor, filters: Filters, stream: Tensor) -> Tensor:
    tokens = []
    for rows, ids, logprobs in find_survivors(tempered, filters).lists():
        columns = rule(torch.exp(logprobs), ids, stream[rows]).long()[:, None]
        tokens.append(torch.where(columns < 0, -1, ids.gather(1, columns.clamp(min=0))).squeeze(1).int())
    return torch.cat(tokens)
