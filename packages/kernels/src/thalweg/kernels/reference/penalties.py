"""Changes that a request makes to its logits: penalties for tokens that it has seen, biases and bans.

How often each token occurred is kept in tables with a row per slot; slot 0 is nobody's and stays empty. Ids that are
negative, or outside the vocabulary, count for nothing. Letters: R rows, V vocabulary, G drafts fed in a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_shape
from thalweg.kernels.reference.vocabulary_rows import rows_per_piece


def reset_token_counts(
    output_counts: Tensor,
    in_prompt: Tensor,
    slots: Tensor,
    prompt_ids: Tensor,
    prompt_rows: Tensor,
    output_ids: Tensor,
    output_rows: Tensor,
) -> None:
    """Let some slots hold the counts of other texts, in place.

    output_counts: int32 [slots, V] and in_prompt: bool [slots, V], the tables. slots: int [M], all different but for 0,
    which stays empty. prompt_ids: int [P] and prompt_rows: int [P]: the prompt of slots[prompt_rows[i]] holds
    prompt_ids[i]. output_ids, output_rows: int [Q] the same of outputs; repeated ids add up.
    """
    _check_tables(output_counts, in_prompt)
    check_shape("slots", slots, ("M",))
    check_shape("prompt_rows", prompt_rows, tuple(prompt_ids.shape))
    check_shape("output_rows", output_rows, tuple(output_ids.shape))
    target = slots.long()
    output_counts.index_fill_(0, target, 0)
    in_prompt.index_fill_(0, target, False)
    is_known, place = _places(in_prompt, target[prompt_rows.long()], prompt_ids)
    in_prompt.view(-1).index_put_((place,), is_known)
    _add_ones(output_counts, target[output_rows.long()], output_ids)


def count_tokens(output_counts: Tensor, slots: Tensor, token_ids: Tensor) -> None:
    """Add 1 for each of token_ids int [N, k] to the row slots int [N] of output_counts int32 [slots, V], in place."""
    check_shape("output_counts", output_counts, ("slots", "V"))
    check_shape("slots", slots, ("N",))
    check_shape("token_ids", token_ids, (slots.shape[0], "k"))
    _add_ones(output_counts, slots.long()[:, None].expand_as(token_ids).reshape(-1), token_ids.reshape(-1))


def apply_penalties(
    logits: Tensor,
    output_counts: Tensor,
    in_prompt: Tensor,
    slots: Tensor,
    step_ids: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Lower the logits float32 [R, V] of tokens that occurred before, in place.

    output_counts: int32 [slots, V] and in_prompt: bool [slots, V]; row i has the counts of slots[i], slots: int [R],
    and 1 more for each of step_ids[i], step_ids: int [R, G]. repetition, presence, frequency: float [R], off at 1, 0
    and 0. A token in the prompt or the output is divided by repetition where its logit is positive and multiplied by it
    elsewhere; then frequency * count is taken off, then presence where the count is not 0. Each of the four operations
    is rounded to float32; frequency * count is one of them.
    """
    _check_tables(output_counts, in_prompt)
    check_shape("logits", logits, ("R", output_counts.shape[1]))
    num_rows = logits.shape[0]
    check_shape("step_ids", step_ids, (num_rows, "G"))
    for name, values in (
        ("slots", slots),
        ("repetition", repetition),
        ("presence", presence),
        ("frequency", frequency),
    ):
        check_shape(name, values, (num_rows,))
    if logits.dtype != torch.float32:
        raise ConfigError(f"logits have dtype {logits.dtype}; float32 is required")
    amounts = torch.stack((repetition.float(), presence.float(), frequency.float()))
    if logits.device.type == "cpu":
        _penalise_listed(logits, output_counts, in_prompt, slots.long(), step_ids, amounts)
    else:
        penalise_rows(logits, output_counts, in_prompt, slots.long(), step_ids, amounts)


def penalise_rows(
    logits: Tensor, output_counts: Tensor, in_prompt: Tensor, slots: Tensor, step_ids: Tensor, amounts: Tensor
) -> None:
    """`apply_penalties` by arithmetic on whole rows; amounts: float32 [3, R] repetition, presence, frequency."""
    counts = _counts(output_counts, slots, step_ids)
    is_seen = (counts > 0) | in_prompt[slots]
    logits.copy_(torch.where(is_seen, _penalised(logits, counts, amounts[:, :, None]), logits))


def _counts(output_counts: Tensor, slots: Tensor, step_ids: Tensor) -> Tensor:
    """int32 [R, V], how often each token stands in the output of each row."""
    is_known = (step_ids >= 0) & (step_ids < output_counts.shape[1])
    columns = torch.where(is_known, step_ids, 0).long()
    return output_counts[slots].scatter_add_(1, columns, is_known.to(output_counts.dtype))


def _penalised(logits: Tensor, counts: Tensor, amounts: Tensor) -> Tensor:
    """New logits of tokens that were seen; amounts: repetition, presence, frequency."""
    repetition, presence, frequency = amounts.unbind()
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    return scaled.sub_(frequency * counts).sub_(presence * (counts > 0))


def _penalise_listed(
    logits: Tensor, output_counts: Tensor, in_prompt: Tensor, slots: Tensor, step_ids: Tensor, amounts: Tensor
) -> None:
    """The same on the CPU: only the tokens that were seen are touched, and each table row is searched once."""
    rows = torch.nonzero((amounts != torch.tensor([[1.0], [0.0], [0.0]])).any(0)).squeeze(1)
    if rows.numel() == 0:
        return
    cell_rows, ids = _seen_in_tables(output_counts, in_prompt, slots, rows)
    fed = step_ids[rows].long()
    is_known = (fed >= 0) & (fed < logits.shape[1])
    # A cell may come twice: it is computed from the same numbers both times.
    cell_rows = torch.cat((cell_rows, rows[:, None].expand_as(fed)[is_known]))
    ids = torch.cat((ids, fed[is_known]))
    counts = output_counts[slots[cell_rows], ids] + (step_ids[cell_rows] == ids[:, None]).sum(1)
    logits.index_put_((cell_rows, ids), _penalised(logits[cell_rows, ids], counts, amounts[:, cell_rows]))


def _seen_in_tables(output_counts: Tensor, in_prompt: Tensor, slots: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(row, token) of what the tables hold for some rows int64 [m], int64 [S] each; a slot is searched once."""
    vocabulary = output_counts.shape[1]
    used, slot_of_row = torch.unique(slots[rows], return_inverse=True)
    found = []
    for start in range(0, used.numel(), rows_per_piece(vocabulary)):
        piece = used[start : start + rows_per_piece(vocabulary)]
        is_seen = (output_counts[piece] != 0) | in_prompt[piece]
        found.append(torch.from_numpy(np.flatnonzero(is_seen.numpy())) + start * vocabulary)
    cells = torch.cat(found)
    ends = torch.searchsorted(cells, torch.arange(used.numel() + 1) * vocabulary)
    lengths = (ends[1:] - ends[:-1])[slot_of_row]
    first = ends[slot_of_row] - (lengths.cumsum(0) - lengths)
    places = torch.arange(int(lengths.sum())) + first.repeat_interleave(lengths)
    return rows.repeat_interleave(lengths), cells[places] % vocabulary


def add_biases(logits: Tensor, rows: Tensor, ids: Tensor, biases: Tensor) -> None:
    """Add biases float [B] to logits float [R, V] at (rows, ids), int [B] each, all pairs different, in place."""
    check_shape("ids", ids, tuple(rows.shape))
    check_shape("biases", biases, tuple(rows.shape))
    place = rows.long(), ids.long()
    logits.index_put_(place, logits[place] + biases.type_as(logits))


def forbid_tokens(logits: Tensor, rows: Tensor, ids: Tensor) -> None:
    """Set logits float [R, V] to -inf at (rows, ids), int [F] each, in place; pairs may repeat."""
    check_shape("ids", ids, tuple(rows.shape))
    banned = torch.full((), -torch.inf, dtype=logits.dtype, device=logits.device)
    logits.index_put_((rows.long(), ids.long()), banned)


def _check_tables(output_counts: Tensor, in_prompt: Tensor) -> None:
    check_shape("output_counts", output_counts, ("slots", "V"))
    check_shape("in_prompt", in_prompt, tuple(output_counts.shape))


def _places(table: Tensor, slots: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Which ids count bool [N], and their places int64 [N] in the flat table; places of others lie in slot 0."""
    is_known = (ids >= 0) & (ids < table.shape[1]) & (slots != 0)
    return is_known, torch.where(is_known, slots * table.shape[1] + ids.long(), 0)


def _add_ones(output_counts: Tensor, slots: Tensor, ids: Tensor) -> None:
    is_known, place = _places(output_counts, slots, ids)
    output_counts.view(-1).scatter_add_(0, place, is_known.to(output_counts.dtype))


OPS: dict[str, Callable[..., Any]] = {
    "reset_token_counts": reset_token_counts,
    "count_tokens": count_tokens,
    "apply_penalties": apply_penalties,
    "add_biases": add_biases,
    "forbid_tokens": forbid_tokens,
}
