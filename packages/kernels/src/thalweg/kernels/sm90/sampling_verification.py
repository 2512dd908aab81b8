"""How far drafts hold, on Hopper: verdicts of single rows, and the prefix of each sequence that they leave."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels.reference.numerics import check_count
from thalweg.kernels.reference.verification import (
    Verdicts,
    Verification,
    check_forced,
    check_pool,
    check_prefix,
    check_rows_and_ids,
)
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.sampling_judge import empty_verdicts, judge_into
from thalweg.kernels.sm90.sampling_random import checked_streams
from thalweg.kernels.sm90.sampling_verdicts import FORCED, UNCHANGED, WITHOUT_BROKEN, matches_kernel, prefix_kernel
from thalweg.kernels.sm90.sampling_weights import check_rows
from thalweg.kernels.sm90.tensors import check_device


def _int(vector: Tensor) -> Tensor:
    """Integers as int32, adjacent."""
    return vector.int().contiguous()


def _bytes(flags: Tensor) -> Tensor:
    """Flags as bytes, adjacent."""
    return flags.contiguous().view(torch.uint8)


def _prefix(
    kind: int,
    given: Tensor,
    is_broken: Tensor,
    token_ids: Tensor,
    query_lengths: Tensor,
    old: tuple[Tensor, Tensor],
    new: tuple[Tensor, Tensor],
    accept_probs: Tensor,
    draft_length: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """What `accepted_prefix` returns, after a change of verdicts (tokens int32, bytes)."""
    count, device = query_lengths.shape[0], token_ids.device
    num_accepted = torch.empty(count, dtype=torch.int32, device=device)
    last_rows = torch.empty(count, dtype=torch.int64, device=device)
    accepted_ids = torch.empty(count, draft_length, dtype=torch.int32, device=device)
    if count > 0 and token_ids.shape[0] > 0:
        ids = accepted_ids.view(-1) if draft_length else num_accepted  # without columns nothing is written
        with torch.cuda.device(device):
            prefix_kernel(kind)(
                given,
                is_broken,
                token_ids,
                query_lengths,
                *old,
                *new,
                accept_probs,
                num_accepted,
                last_rows,
                ids,
                draft_length,
            )
    return num_accepted, last_rows, accepted_ids


def accepted_prefix(
    is_accepted: Tensor, token_ids: Tensor, query_lengths: Tensor, draft_length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As the reference, of at least one row."""
    check_prefix(is_accepted, token_ids, query_lengths, draft_length)
    check_device(is_accepted=is_accepted, token_ids=token_ids, query_lengths=query_lengths)
    flags, tokens, lengths = _bytes(is_accepted), _int(token_ids), _int(query_lengths)
    unused = torch.empty(token_ids.shape[0], dtype=torch.float32, device=token_ids.device)
    pair = tokens, flags
    return _prefix(UNCHANGED, tokens, flags, tokens, lengths, pair, pair, unused, draft_length)


def _matched(
    drawn_ids: Tensor,
    token_ids: Tensor,
    query_lengths: Tensor,
    pool: tuple[Tensor, Tensor | None, int, int] | None = None,
) -> tuple[Verdicts, Tensor, Tensor, Tensor]:
    """(verdicts by equality, draft_ids int32 [T], has_draft bool [T], draft_rows int64 [T]).

    pool: (read_slots int32 [N], flags of certain drafts as bytes, draft length, number of slots).
    """
    num_rows, device = token_ids.shape[0], token_ids.device
    verdicts = empty_verdicts(num_rows, device)
    draft_ids = torch.empty(num_rows, dtype=torch.int32, device=device)
    has_draft = torch.zeros(num_rows, dtype=torch.bool, device=device)  # rows that no sequence has judge nothing
    draft_rows = torch.empty(num_rows, dtype=torch.int64, device=device)
    slots, flags, length, num_slots = (query_lengths, None, 0, 0) if pool is None else pool
    if num_rows > 0:
        with torch.cuda.device(device):
            matches_kernel()(
                drawn_ids,
                token_ids,
                query_lengths,
                slots,
                has_draft.view(torch.uint8) if flags is None else flags,
                verdicts.token_ids,
                verdicts.is_accepted.view(torch.uint8),
                verdicts.accept_probs,
                verdicts.draft_logprobs,
                draft_ids,
                has_draft.view(torch.uint8),
                draft_rows,
                length,
                num_slots,
                flags is not None,
            )
    return verdicts, draft_ids, has_draft, draft_rows


def _finished(
    verdicts: Verdicts,
    drawn_ids: Tensor,
    is_broken: Tensor,
    token_ids: Tensor,
    query_lengths: Tensor,
    draft_length: int,
) -> Verification:
    """The verdicts without those of broken rows, in place, and the prefix that they leave."""
    pair = verdicts.token_ids, verdicts.is_accepted.view(torch.uint8)
    prefix = _prefix(
        WITHOUT_BROKEN, drawn_ids, is_broken, token_ids, query_lengths, pair, pair, verdicts.accept_probs, draft_length
    )
    return Verification(
        verdicts.token_ids, verdicts.is_accepted, verdicts.accept_probs, verdicts.draft_logprobs, *prefix
    )


def match_drafts(
    drawn_ids: Tensor, token_ids: Tensor, query_lengths: Tensor, is_broken: Tensor, draft_length: int
) -> Verification:
    """As the reference."""
    check_rows_and_ids(token_ids, query_lengths, is_broken, drawn_ids=drawn_ids)
    check_count("draft_length", draft_length)
    check_device(drawn_ids=drawn_ids, token_ids=token_ids, query_lengths=query_lengths, is_broken=is_broken)
    drawn, tokens, lengths, broken = _int(drawn_ids), _int(token_ids), _int(query_lengths), _bytes(is_broken)
    verdicts, *_ = _matched(drawn, tokens, lengths)
    return _finished(verdicts, drawn, broken, tokens, lengths, draft_length)


def verify_drafts(
    best_ids: Tensor,
    token_ids: Tensor,
    query_lengths: Tensor,
    is_broken: Tensor,
    logprobs: Tensor,
    seeds: Tensor,
    positions: Tensor,
    draft_pool: Tensor,
    read_slots: Tensor,
    *,
    is_certain: Tensor | None = None,
    drawn_rows: Tensor | None = None,
) -> Verification:
    """As the reference, of float32 rows that may lie apart; a row itself may not, nor may slots of the pool.

    Nothing is read back, so that numbers are not refused: a draft that the pool has no row for does not hold.
    """
    check_rows_and_ids(token_ids, query_lengths, is_broken, best_ids=best_ids)
    check_rows("logprobs", logprobs)
    check_pool(token_ids, query_lengths, logprobs, draft_pool, read_slots, is_certain, drawn_rows)
    streams = checked_streams(logprobs.shape[0], seeds, positions)
    pool = draft_pool.flatten(0, 1)
    check_rows("draft_pool", pool)
    given = {"is_certain": is_certain, "drawn_rows": drawn_rows}
    check_device(
        best_ids=best_ids,
        token_ids=token_ids,
        query_lengths=query_lengths,
        is_broken=is_broken,
        logprobs=logprobs,
        seeds=seeds,
        positions=positions,
        draft_pool=draft_pool,
        read_slots=read_slots,
        **{name: tensor for name, tensor in given.items() if tensor is not None},
    )
    best, tokens, lengths, reads = _int(best_ids), _int(token_ids), _int(query_lengths), _int(read_slots)
    broken, (num_slots, draft_length) = _bytes(is_broken), draft_pool.shape[:2]
    flags = None if is_certain is None else _bytes(is_certain.flatten())
    if drawn_rows is None:
        drawn_rows = torch.arange(token_ids.shape[0], device=token_ids.device)
    verdicts, drafts, has_draft, draft_rows = _matched(best, tokens, lengths, (reads, flags, draft_length, num_slots))
    judge_into(
        verdicts,
        drawn_rows.long().contiguous(),
        logprobs,
        drafts,
        has_draft,
        pool,
        draft_rows,
        streams,
        keeps=True,
    )
    return _finished(verdicts, best, broken, tokens, lengths, draft_length)


def force_tokens(
    verification: Verification, forced_ids: Tensor, token_ids: Tensor, query_lengths: Tensor
) -> Verification:
    """As the reference."""
    check_forced(verification, forced_ids, token_ids, query_lengths)
    check_device(
        forced_ids=forced_ids,
        token_ids=token_ids,
        query_lengths=query_lengths,
        verified_ids=verification.token_ids,
        is_accepted=verification.is_accepted,
        accept_probs=verification.accept_probs,
    )
    forced, tokens, lengths = _int(forced_ids), _int(token_ids), _int(query_lengths)
    old = _int(verification.token_ids), _bytes(verification.is_accepted)
    new = torch.empty_like(old[0]), torch.empty_like(old[1])
    draft_length = verification.accepted_ids.shape[1]
    prefix = _prefix(
        FORCED, forced, old[1], tokens, lengths, old, new, verification.accept_probs.contiguous(), draft_length
    )
    return Verification(
        new[0], new[1].view(torch.bool), verification.accept_probs, verification.draft_logprobs, *prefix
    )


IMPLEMENTATIONS = tuple(
    implementation(function) for function in (accepted_prefix, match_drafts, verify_drafts, force_tokens)
)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "match_rows": matches_kernel,
    "prefix": functools.partial(prefix_kernel, UNCHANGED),
    "prefix_without_broken": functools.partial(prefix_kernel, WITHOUT_BROKEN),
    "prefix_forced": functools.partial(prefix_kernel, FORCED),
}
"""Kernels by name, to be compiled for an architecture without a GPU."""
