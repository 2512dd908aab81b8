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

import numpy as np
import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.metadata import check_lengths, spread_queries
from thalweg.kernels.reference.numerics import check_count, check_integers, check_tensor, sum_last
from thalweg.kernels.reference.random_numbers import COIN, FRESH, RESIDUAL, check_streams, uniform
from thalweg.kernels.reference.sampling import draw
from thalweg.kernels.reference.vocabulary_rows import in_pieces

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


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdicts of single rows; the fields are those of `Verification`."""

    token_ids: Tensor
    is_accepted: Tensor
    accept_probs: Tensor
    draft_logprobs: Tensor


def judge_drafts(
    logprobs: Tensor,
    draft_ids: Tensor,
    has_draft: Tensor,
    draft_logprobs: Tensor,
    draft_rows: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Verdicts:
    """Accept or replace the draft of each of R rows by rejection sampling, or draw a fresh token where there is none.

    logprobs: float32 [R, V] of the target as a draw uses them, -inf where filtered. draft_ids: int [R]; a negative one
    is refused. has_draft: bool [R], false on rows that draw fresh. draft_logprobs: float32 [D, V], each row a
    distribution that drafts are drawn from; draft_rows: int [R] which of them, negative = one that holds nothing but
    the draft. seeds: uint64 or int64 [R]; positions: int [R] in the random stream of the row's sequence.

    P and D being target and draft distribution, draft d is accepted with probability min(1, P(d) / D(d)). A refused one
    is replaced by a draw from max(P - ALPHA * D, 0); token -1 where that is empty.
    """
    check_judged(logprobs, draft_ids, has_draft, draft_logprobs, draft_rows, seeds, positions)
    vocabulary = logprobs.shape[1]
    is_known = has_draft & (draft_ids >= 0) & (draft_ids < vocabulary)
    is_stored = has_draft & (draft_rows >= 0)
    columns = torch.where(is_known, draft_ids, 0).long()
    stored_rows = torch.where(is_stored, draft_rows, 0).long()

    drawn_with = torch.where(is_stored, draft_logprobs[stored_rows, columns], 0.0)
    drawn_with = torch.where(is_known, drawn_with, torch.where(has_draft, -torch.inf, 0.0))
    gain = logprobs.gather(1, columns[:, None]).squeeze(1).double() - drawn_with.double()
    holds = is_known & (uniform(seeds, positions, COIN) < torch.exp(gain))  # the coin is below 1, so a sure draft holds

    def replace(target: Tensor, *row: Tensor) -> Tensor:
        return _replacements(target, draft_logprobs, *row)

    u = torch.where(has_draft, uniform(seeds, positions, RESIDUAL), uniform(seeds, positions, FRESH))
    replaced = in_pieces(replace, logprobs, stored_rows, is_stored, columns, is_known & ~is_stored, u, ~holds)
    accept_probs = torch.where(has_draft, (1 - replaced[:, 1]).clamp(min=0), 1.0)
    return Verdicts(
        torch.where(holds, draft_ids, replaced[:, 0]).int(), holds | ~has_draft, accept_probs.float(), drawn_with
    )


def _replacements(
    logprobs: Tensor,
    draft_logprobs: Tensor,
    stored_rows: Tensor,
    is_stored: Tensor,
    columns: Tensor,
    is_certain: Tensor,
    u: Tensor,
    is_wanted: Tensor,
) -> Tensor:
    """(token, mass) of each row, float64 [n, 2]: what is drawn in place of its draft, and what that is drawn from.

    On the CPU tokens that are not wanted may mean nothing.
    """
    taken_off = draft_logprobs.index_select(0, stored_rows).masked_fill_(~is_stored[:, None], -torch.inf)
    of_draft = torch.where(is_certain, 0.0, taken_off.gather(1, columns[:, None]).squeeze(1))
    taken_off = _exp(taken_off.scatter_(1, columns[:, None], of_draft[:, None])).mul_(ALPHA)
    weights = _exp(logprobs).sub_(taken_off).clamp_(min=0)
    mass = sum_last(weights.double())
    if weights.device.type == "cpu" and not bool(is_wanted.any()):
        return torch.stack((torch.zeros_like(mass), mass), dim=1)
    return torch.stack((draw(weights, u).double(), mass), dim=1)


def _exp(logprobs: Tensor) -> Tensor:
    """Probabilities. Most are 0 where rows are filtered, and on the CPU torch takes three times as long for those."""
    if logprobs.device.type == "cpu":
        return torch.from_numpy(np.exp(logprobs.numpy()))
    return torch.exp(logprobs)


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
    """Accept drafts by rejection sampling; of greedy rows, if they equal the argmax.

    best_ids: int [T], the argmax of each row's logits. token_ids: int [T] that the rows fed the model. query_lengths:
    int [N] rows per sequence, 1 to 1 + G. is_broken: bool [T], rows without usable logits: no draft holds there, and
    they yield best_ids, or 0.

    drawn_rows: int64 [R], ascending, the rows that are not greedy; None = all of them (if none is, call match_drafts
    with best_ids). logprobs: float32 [R, V] of the target as a draw uses them. seeds: uint64 or int64 [R]; positions:
    int [R] in the random stream of the row's sequence. draft_pool: float32 [slots, G, V] log-probabilities that drafts
    were drawn from; row j of sequence i is judged by draft_pool[read_slots[i], j]. read_slots: int [N]. is_certain:
    bool [slots, G], drafts that stand for a distribution which holds nothing else, whatever the pool has. How is said
    at `judge_drafts`. Where the target leaves nothing to draw from, a row yields best_ids.
    """
    check_rows_and_ids(token_ids, query_lengths, is_broken, best_ids=best_ids)
    check_pool(token_ids, query_lengths, logprobs, draft_pool, read_slots, is_certain, drawn_rows)
    check_streams(logprobs.shape[0], seeds, positions)
    draft_length = draft_pool.shape[1]
    sequence, place, has_draft, drafts = _rows(token_ids, query_lengths)
    draft_rows = read_slots.long()[sequence] * draft_length + torch.where(has_draft, place, 0)
    if is_certain is not None:
        draft_rows = torch.where(is_certain.flatten()[draft_rows], -1, draft_rows)

    verdicts = _greedy_verdicts(best_ids, drafts, has_draft)
    drawn = slice(None) if drawn_rows is None else drawn_rows
    judged = judge_drafts(
        logprobs, drafts[drawn], has_draft[drawn], draft_pool.flatten(0, 1), draft_rows[drawn], seeds, positions
    )
    yielded = torch.where(judged.token_ids < 0, verdicts.token_ids[drawn], judged.token_ids)
    for all_rows, of_drawn in (
        (verdicts.token_ids, yielded),
        (verdicts.is_accepted, judged.is_accepted),
        (verdicts.accept_probs, judged.accept_probs),
        (verdicts.draft_logprobs, judged.draft_logprobs),
    ):
        all_rows[drawn] = of_drawn
    return _verification(verdicts, best_ids, is_broken, has_draft, token_ids, query_lengths, draft_length)


def match_drafts(
    drawn_ids: Tensor, token_ids: Tensor, query_lengths: Tensor, is_broken: Tensor, draft_length: int
) -> Verification:
    """Accept the drafts that the target's own tokens repeat: for coupled draws, and for greedy ones.

    drawn_ids: int [T], what the target drew in each row. token_ids: int [T] that the rows fed the model. query_lengths:
    int [N] rows per sequence, 1 to 1 + draft_length. is_broken: bool [T], rows that drew nothing: no draft holds there,
    and they yield drawn_ids, or 0.
    """
    check_rows_and_ids(token_ids, query_lengths, is_broken, drawn_ids=drawn_ids)
    check_count("draft_length", draft_length)
    _, _, has_draft, drafts = _rows(token_ids, query_lengths)
    verdicts = _greedy_verdicts(drawn_ids, drafts, has_draft)
    return _verification(verdicts, drawn_ids, is_broken, has_draft, token_ids, query_lengths, draft_length)


def accepted_prefix(
    is_accepted: Tensor, token_ids: Tensor, query_lengths: Tensor, draft_length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What is left of drafts judged one by one: num_accepted int32 [N], last_rows int64 [N], accepted_ids int32 [N, G].

    is_accepted: bool [T], true on rows whose draft holds; last rows do not matter. token_ids: int [T] that the rows fed
    the model. query_lengths: int [N]. A draft counts while all before it hold; last_rows is the row of the first one
    that does not, or the sequence's last row; accepted_ids are the drafts that count, then -1.
    """
    check_prefix(is_accepted, token_ids, query_lengths, draft_length)
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
    check_forced(verification, forced_ids, token_ids, query_lengths)
    _, _, has_draft, drafts = _rows(token_ids, query_lengths)
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


def _rows(token_ids: Tensor, query_lengths: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each row [T]: its sequence, place in it, whether it judges a draft, and the token that the next row fed."""
    sequence, place = spread_queries(query_lengths, token_ids.shape[0])
    has_draft = place < query_lengths.long()[sequence] - 1
    return sequence, place, has_draft, token_ids.roll(-1)


def _greedy_verdicts(drawn_ids: Tensor, drafts: Tensor, has_draft: Tensor) -> Verdicts:
    """Verdicts of all rows, in new tensors, if a draft holds exactly when it equals the token drawn."""
    holds = (drawn_ids == drafts) & (drafts >= 0) | ~has_draft
    draft_logprobs = torch.where(has_draft & (drafts < 0), -torch.inf, 0.0)
    return Verdicts(drawn_ids.int().clone(), holds, holds.float(), draft_logprobs)


def _verification(
    verdicts: Verdicts,
    drawn_ids: Tensor,
    is_broken: Tensor,
    has_draft: Tensor,
    token_ids: Tensor,
    query_lengths: Tensor,
    draft_length: int,
) -> Verification:
    """The verdicts without those of broken rows that judge a draft, and the prefix that they leave."""
    is_refused = is_broken & has_draft
    is_accepted = verdicts.is_accepted & ~is_refused
    return Verification(
        torch.where(is_broken, drawn_ids, verdicts.token_ids).int().clamp(min=0),
        is_accepted,
        torch.where(is_refused, 0.0, verdicts.accept_probs),
        verdicts.draft_logprobs,
        *accepted_prefix(is_accepted, token_ids, query_lengths, draft_length),
    )


def check_judged(
    logprobs: Tensor,
    draft_ids: Tensor,
    has_draft: Tensor,
    draft_logprobs: Tensor,
    draft_rows: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> None:
    """Raise ConfigError unless the arguments of `judge_drafts` go together."""
    check_tensor("logprobs", logprobs, ("R", "V"), torch.float32)
    rows, vocabulary = logprobs.shape
    check_integers("draft_ids", draft_ids, (rows,))
    check_tensor("has_draft", has_draft, (rows,), torch.bool)
    check_tensor("draft_logprobs", draft_logprobs, ("D", vocabulary), torch.float32)
    if rows and draft_logprobs.shape[0] == 0:
        raise ConfigError("draft_logprobs has no rows; at least one is required, be it read or not")
    check_integers("draft_rows", draft_rows, (rows,))
    check_streams(rows, seeds, positions)


def check_rows_and_ids(token_ids: Tensor, query_lengths: Tensor, is_broken: Tensor, **ids: Tensor) -> None:
    """Raise ConfigError unless these are rows of sequences, flags of the rows, and other ids of them."""
    check_integers("token_ids", token_ids, ("T",))
    check_lengths(query_lengths, token_ids.shape[0])
    check_tensor("is_broken", is_broken, tuple(token_ids.shape), torch.bool)
    for name, values in ids.items():
        check_integers(name, values, tuple(token_ids.shape))


def check_pool(
    token_ids: Tensor,
    query_lengths: Tensor,
    logprobs: Tensor,
    draft_pool: Tensor,
    read_slots: Tensor,
    is_certain: Tensor | None,
    drawn_rows: Tensor | None,
) -> None:
    """Raise ConfigError unless logprobs and the pool are what `verify_drafts` takes for rows of these sequences."""
    num_drawn = token_ids.shape[0] if drawn_rows is None else "R"
    check_tensor("logprobs", logprobs, (num_drawn, "V"), torch.float32)
    if drawn_rows is not None:
        check_integers("drawn_rows", drawn_rows, (logprobs.shape[0],))
    check_tensor("draft_pool", draft_pool, ("slots", "G", logprobs.shape[1]), torch.float32)
    if draft_pool.shape[0] == 0:
        raise ConfigError("draft_pool has no slots; at least one is required")
    if draft_pool.shape[1] == 0:
        raise ConfigError("draft_pool has no rows per slot; without drafts there is nothing to verify")
    check_integers("read_slots", read_slots, tuple(query_lengths.shape))
    if is_certain is not None:
        check_tensor("is_certain", is_certain, tuple(draft_pool.shape[:2]), torch.bool)


def check_prefix(is_accepted: Tensor, token_ids: Tensor, query_lengths: Tensor, draft_length: int) -> None:
    """Raise ConfigError unless the arguments of `accepted_prefix` go together."""
    check_integers("token_ids", token_ids, ("T",))
    check_lengths(query_lengths, token_ids.shape[0])
    check_tensor("is_accepted", is_accepted, tuple(token_ids.shape), torch.bool)
    check_count("draft_length", draft_length)


def check_forced(verification: Verification, forced_ids: Tensor, token_ids: Tensor, query_lengths: Tensor) -> None:
    """Raise ConfigError unless the verification is one of these rows, and forced ids are theirs."""
    check_rows_and_ids(token_ids, query_lengths, verification.is_accepted, forced_ids=forced_ids)
    (num_rows,), (count,) = token_ids.shape, query_lengths.shape
    check_integers("token_ids of verification", verification.token_ids, (num_rows,))
    check_tensor("accept_probs", verification.accept_probs, (num_rows,), torch.float32)
    check_tensor("draft_logprobs", verification.draft_logprobs, (num_rows,), torch.float32)
    check_integers("num_accepted", verification.num_accepted, (count,))
    check_integers("last_rows", verification.last_rows, (count,))
    check_integers("accepted_ids", verification.accepted_ids, (count, "G"))


OPS: dict[str, Callable[..., Any]] = {
    "judge_drafts": judge_drafts,
    "verify_drafts": verify_drafts,
    "match_drafts": match_drafts,
    "accepted_prefix": accepted_prefix,
    "force_tokens": force_tokens,
}
