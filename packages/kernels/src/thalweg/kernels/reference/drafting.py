"""What a drafter that lives on a target model's hidden states needs: features, index build, confidence, draft memory.

Letters: N sequences, T rows, S residual streams, h hidden size, G draft length, W window size, R ring length.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.gemm import matmul
from thalweg.kernels.reference.numerics import carried, check_count, check_integers, check_shape, sigmoid

KEY_ALIGNMENT = 64
CONFIDENCE_LIMIT = 60.0


@dataclass(frozen=True, slots=True)
class DraftIndices:
    """What the rows of a draft block write and read; row i * G + j is place j of sequence i."""

    slots: Tensor
    """int32 [N * G] flat ring slot of the row's draft key, -1 for padding sequences."""
    positions: Tensor
    """int32 [N * G] absolute positions, 0 for padding sequences."""
    is_valid: Tensor
    """bool [N * G] false for padding sequences."""
    key_slots: Tensor
    """int32 [N, K] flat ring slots that all rows of a sequence see, oldest position first, -1 = none."""


def target_feature(trunk: Tensor) -> Tensor:
    """Mean over the streams of trunk [T, S, h] -> [T, h], in the dtype of trunk; rounded once, at the end."""
    check_shape("trunk", trunk, ("T", "S", "h"))
    if trunk.shape[1] == 0:
        raise ConfigError("trunk has 0 streams; at least 1 is needed")
    streams = carried(trunk, "trunk").unbind(1)
    # In stream order: torch.sum over a short axis changes its order with the number of rows.
    return (functools.reduce(torch.add, streams) / len(streams)).type_as(trunk)


def draft_metadata(
    state_slots: Tensor, positions: Tensor, *, draft_length: int, window_size: int, ring_length: int
) -> DraftIndices:
    """Index rows of the block that drafts draft_length tokens for each sequence.

    state_slots: int [N], whose ring begins at flat slot state_slot * ring_length. positions: int [N] of the last
    accepted token; negative = padding sequence. The anchor sits at the next position, in row 0 of the block. Every row
    sees the last window_size positions and the whole block; K is window_size + draft_length rounded up to 64.
    """
    check_draft_block(state_slots, positions, draft_length, window_size, ring_length)
    last = positions.long()[:, None]
    base = state_slots.long()[:, None] * ring_length
    is_real = last >= 0
    place = torch.arange(draft_length, device=positions.device)
    block = last + 1 + place
    width = window_size + draft_length
    entry = torch.arange(key_columns(window_size, draft_length), device=positions.device)
    key = last - window_size + 1 + entry
    is_key = is_real & (key >= 0) & (entry < width)
    return DraftIndices(
        slots=torch.where(is_real, base + block % ring_length, -1).int().flatten(),
        positions=torch.where(is_real, block, 0).int().flatten(),
        is_valid=is_real.expand(-1, draft_length).flatten(),
        key_slots=torch.where(is_key, base + key % ring_length, -1).int(),
    )


def key_columns(window_size: int, draft_length: int) -> int:
    """K of `draft_metadata`."""
    return -(-(window_size + draft_length) // KEY_ALIGNMENT) * KEY_ALIGNMENT


def check_draft_block(
    state_slots: Tensor, positions: Tensor, draft_length: int, window_size: int, ring_length: int
) -> None:
    """Raise ConfigError unless the arguments of `draft_metadata` go together."""
    check_integers("positions", positions, ("N",))
    check_integers("state_slots", state_slots, tuple(positions.shape))
    check_count("draft_length", draft_length, 1)
    check_count("window_size", window_size)
    check_count("ring_length", ring_length, 1)
    if ring_length < window_size + draft_length:
        raise ConfigError(
            f"ring_length is {ring_length}; a window of {window_size} and {draft_length} drafts need "
            f"{window_size + draft_length}"
        )


def confidence(hidden: Tensor, markov: Tensor | None, weight: Tensor, temperature: float) -> Tensor:
    """Estimated probability float32 [n] that a draft is accepted once all drafts before it are.

    hidden: [n, h] of the draft row before its final norm. markov: [n, r] embedding of the token before the draft, None
    without a Markov head. weight: [h + r] or [h]. The logit is divided by temperature, above 0, and clamped to +-60.
    """
    if not temperature > 0:
        raise ConfigError(f"temperature is {temperature}; it must be above 0")
    features = hidden if markov is None else torch.cat((hidden, markov.type_as(hidden)), dim=1)
    check_shape("weight", weight, (features.shape[1],))
    value = carried(features, "hidden")
    logit = matmul(value, weight.type_as(value)[None]).squeeze(1)
    return sigmoid((logit / temperature).clamp(-CONFIDENCE_LIMIT, CONFIDENCE_LIMIT)).float()


def store_draft_rows(pool: Tensor, write_slots: Tensor, rows: Tensor) -> None:
    """Write rows [N, ...] into the slots of pool [slots, ...] in place; slot 0 takes nothing.

    write_slots: int [N], 0 = skip, all others different. Rows of any shape: pool[:, j] is a pool, too.
    """
    check_draft_rows(pool, write_slots, rows)
    reserved = pool[0].clone()
    pool.index_copy_(0, write_slots.long(), rows)
    pool[0] = reserved


def check_draft_rows(pool: Tensor, write_slots: Tensor, rows: Tensor) -> None:
    """Raise ConfigError unless the arguments of `store_draft_rows` go together."""
    if pool.dim() == 0 or pool.shape[0] == 0:
        raise ConfigError(f"pool has shape {list(pool.shape)}; [slots, ...] with at least one slot is expected")
    check_integers("write_slots", write_slots, ("N",))
    check_shape("rows", rows, (write_slots.shape[0], *pool.shape[1:]))
    if rows.dtype != pool.dtype:
        raise ConfigError(f"rows has dtype {rows.dtype}; that of pool, {pool.dtype}, is required")


OPS: dict[str, Callable[..., Any]] = {
    "target_feature": target_feature,
    "draft_metadata": draft_metadata,
    "confidence": confidence,
    "store_draft_rows": store_draft_rows,
}
