"""Inputs of a decode step launched before the host knows the result of the step before it, completed on the device.

Letters: N sequences, P sequences of the previous step, T query tokens, G draft length, L look-back of the n-grams.
`previous_rows` says where a sequence stood in the previous step: a row below P, or a negative number for a fresh one,
of which the host knows everything. Nothing is read back, hence no value on a device is checked, only shapes and dtypes;
on the CPU torch raises IndexError for a row that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.metadata import check_lengths, spread_queries
from thalweg.kernels.reference.numerics import MOST, check_count, check_integers, check_shape


def correct_context_lengths(
    base_lengths: Tensor, query_lengths: Tensor, previous_rows: Tensor, num_accepted: Tensor, draft_length: int
) -> Tensor:
    """Context lengths int32 [N] of the step, its own query tokens included.

    base_lengths: int [N], tokens before the step if the previous step commits all of its 1 + draft_length tokens.
    query_lengths, previous_rows: int [N]. num_accepted: int [P], drafts that the previous step did accept.
    """
    check_rows(previous_rows, base_lengths=base_lengths, query_lengths=query_lengths)
    check_ids("num_accepted", num_accepted, "P")
    check_count("draft_length", draft_length)
    num_rejected = draft_length - _of_previous(num_accepted, previous_rows)
    return (base_lengths + query_lengths - torch.where(previous_rows >= 0, num_rejected, 0)).int()


def redistribute(total: int, previous_rows: Tensor, confidences: Tensor) -> Tensor:
    """Query lengths int32 [N] that share out `total` query tokens by the survival of drafts the host has not seen.

    previous_rows: int [N]. confidences: float32 [P, G] of the previous step's new drafts. The survival of a draft is
    the float32 product of the confidences up to it, in order, and 0 for fresh sequences. Every sequence keeps one
    token; the rest goes to the likeliest drafts, of equals to the first by row, then by place. Not a number comes last.
    Raises ConfigError unless N <= total <= N * (1 + G).
    """
    check_total(total, previous_rows, confidences)
    num_rows, draft_length = previous_rows.shape[0], confidences.shape[1]
    survival = _of_previous(confidences, previous_rows)
    for place in range(1, draft_length):  # not cumprod, which multiplies in float64 on the CPU
        survival[:, place] *= survival[:, place - 1]
    order = torch.where(survival.isnan(), -1, survival).flatten().argsort(descending=True, stable=True)
    is_verified = torch.zeros_like(order, dtype=torch.int32).index_fill(0, order[: total - num_rows], 1)
    return 1 + is_verified.view(num_rows, draft_length).sum(1, dtype=torch.int32)


def gather_token_ids(
    query_lengths: Tensor,
    previous_rows: Tensor,
    token_ids: Tensor,
    previous_token_ids: Tensor,
    previous_draft_ids: Tensor,
    num_queries: int,
) -> Tensor:
    """Input ids [T] of the step, in the dtype of token_ids: of each sequence its newest token, then its drafts.

    query_lengths, previous_rows: int [N]. token_ids: int [N, 1 + G] newest token and drafts as the host has them, used
    for fresh sequences only. previous_token_ids: int [P] and previous_draft_ids: int [P, G], what the previous step
    left. num_queries: T, the sum of query_lengths.
    """
    check_tokens(query_lengths, previous_rows, token_ids, previous_token_ids, previous_draft_ids, num_queries)
    left = torch.cat((previous_token_ids[:, None], previous_draft_ids), dim=1)
    current = _choose(previous_rows, _of_previous(left, previous_rows), token_ids)
    return current[spread_queries(query_lengths, num_queries)]


def gather_ngram_ids(
    query_lengths: Tensor,
    previous_rows: Tensor,
    ngram_ids: Tensor,
    windows: Tensor,
    previous_token_ids: Tensor,
    previous_draft_ids: Tensor,
    num_accepted: Tensor,
    compressed: Tensor,
    pad_id: int,
    num_queries: int,
) -> Tensor:
    """Compressed ids [T, L + 1] of each query token and the L tokens before it, newest first, dtype of ngram_ids.

    ngram_ids: int [N, 1 + G] compressed ids of newest token and drafts, used for fresh sequences only. windows: int
    [N, L + G] compressed ids before those: of a fresh sequence the L before its newest token, then anything; of
    another the last L that the host knows, the newest included, then the G drafts that the previous step verifies.
    num_accepted: int [P], how many of them it accepted. compressed: int [V], the compressed id of every token id.
    The rest as in `gather_token_ids`. A negative id, the mark of an image, becomes pad_id, and so does all that is
    older than it.
    """
    look_back = check_ngrams(
        query_lengths,
        previous_rows,
        ngram_ids,
        windows,
        previous_token_ids,
        previous_draft_ids,
        num_accepted,
        compressed,
        pad_id,
        num_queries,
    )
    left = torch.cat((previous_token_ids[:, None], previous_draft_ids), dim=1)
    ages = torch.arange(look_back + 1, device=windows.device)
    first = _of_previous(num_accepted, previous_rows).long()
    history = windows.gather(1, first[:, None] + ages[:look_back])
    current = _choose(previous_rows, compressed[_of_previous(left, previous_rows)], ngram_ids)
    line = torch.cat((history.type_as(ngram_ids), current), dim=1)
    sequence, place = spread_queries(query_lengths, num_queries)
    ids = line[sequence[:, None], look_back + place[:, None] - ages]
    is_cut = (ids < 0).cumsum(1) > 0
    return torch.where(is_cut, pad_id, ids)


def check_tokens(
    query_lengths: Tensor,
    previous_rows: Tensor,
    token_ids: Tensor,
    previous_token_ids: Tensor,
    previous_draft_ids: Tensor,
    num_queries: int,
    name: str = "token_ids",
) -> None:
    """Raise ConfigError unless the arguments of `gather_token_ids` go together; name: of the fresh ids."""
    check_count("num_queries", num_queries)
    check_rows(previous_rows, query_lengths=query_lengths)
    check_lengths(query_lengths, num_queries)
    check_ids("previous_token_ids", previous_token_ids, "P")
    check_ids("previous_draft_ids", previous_draft_ids, previous_token_ids.shape[0], "G")
    check_ids(name, token_ids, previous_rows.shape[0], 1 + previous_draft_ids.shape[1])


def check_total(total: int, previous_rows: Tensor, confidences: Tensor) -> None:
    """Raise ConfigError unless `redistribute` can share out the total."""
    check_rows(previous_rows)
    check_shape("confidences", confidences, ("P", "G"))
    if confidences.dtype != torch.float32:
        raise ConfigError(f"confidences has dtype {confidences.dtype}; float32 is required")
    num_rows, draft_length = previous_rows.shape[0], confidences.shape[1]
    check_count("total", total)
    if not num_rows <= total <= num_rows * (1 + draft_length):
        raise ConfigError(
            f"total is {total}; {num_rows} sequences with {draft_length} drafts share {num_rows} to "
            f"{num_rows * (1 + draft_length)} query tokens"
        )


def check_ngrams(
    query_lengths: Tensor,
    previous_rows: Tensor,
    ngram_ids: Tensor,
    windows: Tensor,
    previous_token_ids: Tensor,
    previous_draft_ids: Tensor,
    num_accepted: Tensor,
    compressed: Tensor,
    pad_id: int,
    num_queries: int,
) -> int:
    """The look-back; raises ConfigError unless the arguments of `gather_ngram_ids` go together."""
    left = previous_token_ids, previous_draft_ids
    check_tokens(query_lengths, previous_rows, ngram_ids, *left, num_queries, "ngram_ids")
    check_count("pad_id", pad_id, -MOST - 1)
    check_ids("num_accepted", num_accepted, previous_token_ids.shape[0])
    check_ids("compressed", compressed, "V")
    if compressed.shape[0] == 0:
        raise ConfigError("compressed is empty; the compressed ids of all tokens are required")
    check_ids("windows", windows, previous_rows.shape[0], "L + G")
    look_back = windows.shape[1] - previous_draft_ids.shape[1]
    if look_back < 0:
        raise ConfigError(
            f"windows has {windows.shape[1]} columns; at least {previous_draft_ids.shape[1]}, one per draft, are needed"
        )
    return look_back


def _of_previous(values: Tensor, previous_rows: Tensor) -> Tensor:
    """values [P, ...] of each sequence's previous row, [N, ...]; zeros for fresh sequences."""
    if values.shape[0] == 0:
        return values.new_zeros((*previous_rows.shape, *values.shape[1:]))
    is_known = (previous_rows >= 0).view(-1, *[1] * (values.dim() - 1))
    return torch.where(is_known, values[previous_rows.clamp(min=0)], 0)


def _choose(previous_rows: Tensor, known: Tensor, fresh: Tensor) -> Tensor:
    return torch.where(previous_rows[:, None] >= 0, known.type_as(fresh), fresh)


def check_rows(previous_rows: Tensor, **others: Tensor) -> None:
    """Raise ConfigError unless all of these have one integer per sequence."""
    check_ids("previous_rows", previous_rows, "N")
    for name, tensor in others.items():
        check_ids(name, tensor, previous_rows.shape[0])


def check_ids(name: str, tensor: Tensor, *sizes: int | str) -> None:
    """Raise ConfigError unless the tensor has integers and these sizes; a string stands for any."""
    check_integers(name, tensor, sizes)


OPS: dict[str, Callable[..., Any]] = {
    "correct_context_lengths": correct_context_lengths,
    "redistribute": redistribute,
    "gather_token_ids": gather_token_ids,
    "gather_ngram_ids": gather_ngram_ids,
}
"""Ops of this module by name, for the registry."""
