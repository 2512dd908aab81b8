"""Which copy of an expert a token goes to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.eplb._checks import require_array, require_int32, require_integer, require_within
from thalweg.eplb.slots import LARGEST_SIZE
from thalweg.interfaces import ConfigError

_STRIDE = 23333
"""Prime, so that neighbouring rows spread over any number of copies."""


def choose_copies(
    logical: NDArray[Any], slots_of_logical: NDArray[Any], num_copies: NDArray[Any], rank: int
) -> NDArray[np.int32]:
    """The slot of every selected expert, [rows, k]; -1 stays -1.

    Rows spread evenly over the copies and ranks start at different ones. It depends on nothing but row and rank, so
    retries and recorded graphs agree.
    logical: [rows, k] experts that the gate chose, -1 for none. slots_of_logical: [experts, most copies], padded with
    -1, and num_copies: [experts], of one layer. rank: of this process in the expert-parallel group. Raises ConfigError
    for what are no arrays of integers, an expert that the tables do not have, and a rank that is none.
    """
    _check_selection(logical, slots_of_logical)
    num_experts, most_copies = slots_of_logical.shape
    require_array("num_copies", num_copies, 1, f"[{num_experts} experts]")
    if len(num_copies) != num_experts:
        raise ConfigError(f"num_copies has {len(num_copies)} experts; slots_of_logical has {num_experts}")
    require_within("num_copies", num_copies, 1, most_copies)
    require_integer("rank", rank, 0, LARGEST_SIZE - 1)
    selected = logical >= 0
    experts = np.where(selected, logical, 0)
    rows = np.arange(len(logical), dtype=np.int64)[:, None]
    copies = (int(rank) + rows * _STRIDE) % num_copies[experts].astype(np.int64)
    return np.where(selected, slots_of_logical[experts, copies].astype(np.int32), np.int32(-1))


def prefer_local_copies(
    logical: NDArray[Any], slots: NDArray[np.int32], logical_of_slot: NDArray[Any], rank: int, slots_per_rank: int
) -> NDArray[np.int32]:
    """`slots` as `choose_copies` gave them, but this rank's own copy wherever it has one.

    Saves traffic and spoils the even split, so nothing does this unasked. logical_of_slot: [slots], of one layer.
    Raises ConfigError for what are no arrays of integers of these shapes, and a rank that has no slots.
    """
    require_array("logical", logical, 2, "[rows, k]")
    require_array("slots", slots, 2, "[rows, k]")
    require_array("logical_of_slot", logical_of_slot, 1, "[slots]")
    if slots.shape != logical.shape:
        raise ConfigError(f"slots has shape {slots.shape}; it must be that of logical, {logical.shape}")
    require_integer("slots_per_rank", slots_per_rank, 1, max(1, len(logical_of_slot)))
    require_integer("rank", rank, 0, max(1, len(logical_of_slot) // slots_per_rank) - 1)
    first = rank * slots_per_rank
    own = logical_of_slot[first : first + slots_per_rank]
    matches = logical[..., None] == own
    return np.where(matches.any(-1), first + matches.argmax(-1), slots).astype(np.int32)


def follow_split(
    logical: NDArray[Any], slots_of_logical: NDArray[Any], tokens_of_slot: NDArray[Any], tokens_before: NDArray[Any]
) -> NDArray[np.int32]:
    """The slot of every selected expert when this step's tokens are split as `tokens_of_slot` says; -1 stays -1.

    The tokens of an expert are numbered over all ranks, lower ranks and rows first, and fill its copies in order: every
    slot gets exactly its number of tokens.
    logical: [rows, k], -1 for none. slots_of_logical: [experts, most copies], padded with -1. tokens_of_slot: [slots],
    of all ranks together. tokens_before: [experts], how many tokens lower ranks have for each expert. Raises
    ConfigError for what are no arrays of integers, an expert or slot that the tables do not have, negative numbers of
    tokens, and if an expert has more tokens than its slots take.
    """
    _check_selection(logical, slots_of_logical)
    num_experts = len(slots_of_logical)
    for name, tokens, axis in (
        ("tokens_of_slot", tokens_of_slot, "[slots]"),
        ("tokens_before", tokens_before, f"[{num_experts} experts]"),
    ):
        require_array(name, tokens, 1, axis)
        require_int32(name, tokens)
    if len(tokens_before) != num_experts:
        raise ConfigError(f"tokens_before has {len(tokens_before)} experts; slots_of_logical has {num_experts}")
    require_within("slots_of_logical", slots_of_logical, -1, len(tokens_of_slot) - 1)
    flat = logical.ravel()
    order = np.flatnonzero(flat >= 0)
    order = order[np.argsort(flat[order], kind="stable")]
    experts = flat[order]
    first_of_expert = np.searchsorted(experts, experts, side="left")
    number = tokens_before[experts] + np.arange(len(experts)) - first_of_expert
    share = np.where(slots_of_logical >= 0, tokens_of_slot[slots_of_logical], 0)
    filled_up_to = np.cumsum(share, axis=1)[experts]
    if (number >= filled_up_to[:, -1]).any():
        expert = int(experts[number >= filled_up_to[:, -1]][0])
        raise ConfigError(f"expert {expert} has more tokens than the {int(share[expert].sum())} of its split")
    copies = (filled_up_to <= number[:, None]).sum(axis=1)
    slots = np.full(flat.shape, -1, np.int32)
    slots[order] = slots_of_logical[experts, copies]
    return slots.reshape(logical.shape)


def _check_selection(logical: NDArray[Any], slots_of_logical: NDArray[Any]) -> None:
    """ConfigError unless these are selected experts, [rows, k], all of which the table [experts, copies] has."""
    require_array("logical", logical, 2, "[rows, k]")
    require_array("slots_of_logical", slots_of_logical, 2, "[experts, most copies]")
    if 0 in slots_of_logical.shape:
        raise ConfigError(f"slots_of_logical has shape {slots_of_logical.shape}; no dimension may be 0")
    require_within("logical", logical, -1, len(slots_of_logical) - 1)
