"""Verification of drafts: which of them hold, and which token each row yields.

Two rules. By rejection a draft is accepted with the probability that makes the output follow the target's distribution,
given the distribution that the draft came from. By matching the target draws its own tokens, and a draft holds while it
equals them.

A sequence feeds its newest token, the anchor, and then drafts; row j judges the draft that row j + 1 feeds, and the
last row judges none. Letters: N sequences, T query rows, G draft length, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.metadata import spread_queries
from thalweg.kernels.reference.numerics import check_shape, sum_last
from thalweg.kernels.reference.sampling import COIN, FRESH, RESIDUAL, draw, uniform

ALPHA = math.exp(-5e-5)
"""Share of a draft's distribution that the residual takes off: below 1, so that rounding cannot empty the residual."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What each row yields, and how far the drafts of each sequence hold."""

    token_ids: Tensor
    """int32 [T] the draft where it is accepted, else the token in its place; rows after a refused draft are void."""
    is_accepted: Tensor
    """bool [T] the verdict of each row by itself; true on last rows."""
    accept_probs: Tensor
    """float32 [T] probability that a draft of this row is accepted, over all drafts that could stand there; 0 or 1 on
    greedy rows and by matching, 1 on last rows."""
    draft_logprobs: Tensor
    """float32 [T] log-probability that the draft was drawn with; -inf where there is none, 0 on last rows."""
    num_accepted: Tensor
    """int32 [N] drafts before the first refused one."""
    last_rows: Tensor
    """int64 [N] the row that the sequence's newest token comes from."""
    accepted_ids: Tensor
    """int32 [N, G] the accepted drafts, then -1."""


def verify_drafts(
    logprobs: Tensor,
    best_ids: Tensor,
    token_ids: Tensor,
    draft_pool: Tensor,
    read_slots: Tensor,
    query_lengths: Tensor,
    is_greedy: Tensor,
    is_broken: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Verification:
    """Accept drafts by rejection sampling; a refused one is replaced by a draw from what it leaves of the target.

    logprobs: float32 [T, V] of the target as a draw uses them, -inf where filtered. best_ids: int32 [T], the argmax of
    each row's logits. token_ids: int [T] that the rows fed the model. draft_pool: float32 [slots, G, V],
    log-probabilities that drafts were drawn from; row j of sequence i is judged by draft_pool[read_slots[i], j], read_slots int
    [N]. query_lengths: int [N] rows per sequence, 1 to 1 + G. is_greedy: bool [T], rows that take best_ids and nothing
    else. is_broken: bool [T], rows without usable logits: no draft holds there, and best_ids, or 0, is yielded. seeds:
    uint64 or int64 [T]; positions: int [T] of each row in its random stream.

    P and D being target and draft distribution, draft d is accepted with probability min(1, P(d) / D(d)), and never if
    it is negative. The residual is max(P - ALPHA * D, 0); if it is empty, best_ids is yielded. A last row draws from P.
    """
    num_rows, vocabulary = logprobs.shape
    _check_vectors(num_rows, best_ids=best_ids, is_greedy=is_greedy, is_broken=is_broken)
    check_shape("draft_pool", draft_pool, ("slots", "G", vocabulary))
    draft_length = draft_pool.shape[1]
    if draft_length == 0:
        raise ConfigError("draft_pool has no rows per slot; without drafts there is nothing to verify")
    check_shape("read_slots", read_slots, tuple(query_lengths.shape))
    sequence, place, has_draft, drafts = _rows(token_ids, query_lengths, num_rows)
    pool_rows = torch.where(has_draft, read_slots.long()[sequence] * draft_length + place, 0)
    is_known = has_draft & (drafts >= 0) & (drafts < vocabulary)
    columns = torch.where(is_known, drafts, 0)

    flat_pool = draft_pool.flatten(0, 1)
    draft_logprobs = torch.where(is_known, flat_pool[pool_rows, columns], -torch.inf)
    gain = logprobs.gather(1, columns[:, None]).squeeze(1).double() - draft_logprobs.double()
    coin = uniform(seeds, positions, COIN)
    by_chance = (gain >= 0) | (coin < torch.exp(gain))
    holds = torch.where(is_greedy, drafts == best_ids, by_chance) & is_known & ~is_broken

    weights = torch.exp(logprobs)
    weights -= flat_pool.index_select(0, pool_rows).masked_fill_(~has_draft[:, None], -torch.inf).exp_().mul_(ALPHA)
    weights.clamp_(min=0)
    drawn = draw(weights, torch.where(has_draft, uniform(seeds, positions, RESIDUAL), uniform(seeds, positions, FRESH)))
    drawn = torch.where(is_greedy | is_broken | (drawn < 0), best_ids, drawn).clamp(min=0)

    accept_probs = torch.where(is_greedy, holds, (1 - sum_last(weights.double())).clamp(min=0)).float()
    accept_probs = torch.where(is_broken, 0.0, accept_probs)
    row_ids = torch.where(holds, drafts, drawn)
    return _verification(
        row_ids, has_draft, holds, accept_probs, draft_logprobs, token_ids, query_lengths, draft_length
    )


def match_drafts(
    drawn_ids: Tensor, token_ids: Tensor, query_lengths: Tensor, is_broken: Tensor, draft_length: int
) -> Verification:
    """Accept the drafts that the target's own tokens repeat. Also what rejection comes to when every row is greedy.

    drawn_ids: int [T], what the target drew in each row. token_ids: int [T] that the rows fed the model. query_lengths:
    int [N] rows per sequence, 1 to 1 + draft_length. is_broken: bool [T], rows that draw nothing, so that no draft holds
    there.
    """
    num_rows = token_ids.shape[0]
    _check_vectors(num_rows, drawn_ids=drawn_ids, is_broken=is_broken)
    _, _, has_draft, drafts = _rows(token_ids, query_lengths, num_rows)
    is_known = has_draft & (drafts >= 0)
    holds = is_known & (drawn_ids == drafts) & ~is_broken
    draft_logprobs = torch.where(is_known, 0.0, -torch.inf)
    return _verification(
        drawn_ids, has_draft, holds, holds.float(), draft_logprobs, token_ids, query_lengths, draft_length
    )


def accepted_prefix(
    is_accepted: Tensor, token_ids: Tensor, query_lengths: Tensor, draft_length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What is left of drafts judged one by one: num_accepted int32 [N], last_rows int64 [N], accepted_ids int32 [N, G].

    is_accepted: bool [T], true on rows whose draft holds; last rows do not matter. token_ids: int [T] that the rows fed
    the model. query_lengths: int [N]. A draft counts while all before it hold; last_rows is the row of the first one
    that does not, or the sequence's last row; accepted_ids are the drafts that count, then -1.
    """
    _check_vectors(token_ids.shape[0], is_accepted=is_accepted)
    counts = query_lengths.long()
    first = counts.cumsum(0) - counts
    column = torch.arange(draft_length, device=token_ids.device)
    has_draft = column < counts[:, None] - 1
    judge = torch.where(has_draft, first[:, None] + column, 0)
    counted = (has_draft & is_accepted[judge]).int().cumprod(-1).bool()
    num_accepted = counted.sum(-1)
    drafts = token_ids[torch.where(has_draft, judge + 1, 0)]
    return num_accepted.int(), first + num_accepted, torch.where(counted, drafts, -1).int()


def force_tokens(
    verification: Verification, forced_ids: Tensor, token_ids: Tensor, query_lengths: Tensor
) -> Verification:
    """The verification with tokens that are given: a row with a forced id yields it and accepts an equal draft only.

    forced_ids: int [T], negative = free. token_ids: int [T] that the rows fed the model (the first of a sequence is its
    anchor, which is not a forced id but the last token before them). query_lengths: int [N]. accept_probs and
    draft_logprobs stay: they describe the free verdict.
    """
    num_rows = token_ids.shape[0]
    _check_vectors(num_rows, forced_ids=forced_ids)
    _, _, has_draft, drafts = _rows(token_ids, query_lengths, num_rows)
    is_forced = forced_ids >= 0
    is_accepted = torch.where(is_forced & has_draft, forced_ids == drafts, verification.is_accepted)
    draft_length = verification.accepted_ids.shape[1]
    return Verification(
        torch.where(is_forced, forced_ids, verification.token_ids).int(),
        is_accepted,
        verification.accept_probs,
        verification.draft_logprobs,
        *accepted_prefix(is_accepted, token_ids, query_lengths, draft_length),
    )


def _rows(token_ids: Tensor, query_lengths: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each row [T]: its sequence, its place there, whether it judges a draft, and the token that the next row fed."""
    _check_vectors(num_rows, token_ids=token_ids)
    check_shape("query_lengths", query_lengths, ("N",))
    sequence, place = spread_queries(query_lengths, num_rows)
    has_draft = place < query_lengths.long()[sequence] - 1
    return sequence, place, has_draft, token_ids.roll(-1)


def _verification(
    row_ids: Tensor,
    has_draft: Tensor,
    holds: Tensor,
    accept_probs: Tensor,
    draft_logprobs: Tensor,
    token_ids: Tensor,
    query_lengths: Tensor,
    draft_length: int,
) -> Verification:
    """The verdicts on drafts, completed by the last rows, which judge none, and by the accepted prefixes."""
    return Verification(
        row_ids.int(),
        holds | ~has_draft,
        torch.where(has_draft, accept_probs, 1.0),
        torch.where(has_draft, draft_logprobs, 0.0),
        *accepted_prefix(holds, token_ids, query_lengths, draft_length),
    )


def _check_vectors(num_rows: int, **vectors: Tensor) -> None:
    for name, vector in vectors.items():
        check_shape(name, vector, (num_rows,))


OPS: dict[str, Callable[..., Any]] = {
    "verify_drafts": verify_drafts,
    "match_drafts": match_drafts,
    "accepted_prefix": accepted_prefix,
    "force_tokens": force_tokens,
}
