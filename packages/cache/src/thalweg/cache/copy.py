"""Whole-block and whole-slot copies that a step plan asks for before its forward pass.

The host knows the ids, so each row is a copy of its own within the device's memory: nothing is sent there, no second
buffer of the rows is made, and nobody waits.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from thalweg.interfaces import ConfigError


def copy_blocks(blocks: torch.Tensor, pairs: ArrayLike) -> None:
    """Copy blocks; a pair with destination 0 only releases its source elsewhere and copies nothing.

    blocks: uint8 [num_blocks, block_bytes], updated in place. pairs: int [k, 2] (source, destination).
    """
    table = _pairs(pairs)
    _copy_rows(blocks, table[table[:, 1] != 0], "block_copies")


def copy_states(states: torch.Tensor, pairs: ArrayLike) -> None:
    """Copy state slots.

    states: uint8 [num_state_slots, slot_bytes], updated in place. pairs: int [k, 2] (source, destination).
    """
    _copy_rows(states, _pairs(pairs), "state_copies")


def zero_states(states: torch.Tensor, slots: ArrayLike) -> None:
    """Clear state slots.

    states: uint8 [num_state_slots, slot_bytes], updated in place. slots: int [k].
    """
    index = np.asarray(slots, np.int64).reshape(-1)
    _check_ids(states, index, "zero_state_slots")
    for slot in index.tolist():
        states[slot].zero_()


def _pairs(pairs: ArrayLike) -> NDArray[np.int64]:
    table = np.asarray(pairs, np.int64)
    if table.size == 0:
        return np.zeros((0, 2), np.int64)
    if table.ndim != 2 or table.shape[1] != 2:
        raise ConfigError(f"copies are {table.shape}; [k, 2] (source, destination) is needed")
    return table


def _copy_rows(pool: torch.Tensor, table: NDArray[np.int64], name: str) -> None:
    if table.size == 0:
        return
    source, destination = table[:, 0], table[:, 1]
    _check_ids(pool, table.reshape(-1), name)
    if np.unique(destination).size != destination.size:
        raise ConfigError(f"{name} writes a destination twice: {destination.tolist()}")
    if np.isin(destination, source).any():
        raise ConfigError(
            f"{name} reads what it writes: sources {source.tolist()}, destinations {destination.tolist()}"
        )
    for old, new in table.tolist():
        pool[new].copy_(pool[old], non_blocking=True)


def _check_ids(pool: torch.Tensor, ids: NDArray[np.int64], name: str) -> None:
    """Ids of live rows: 0 means none and is no valid source or destination."""
    bad = ids[(ids < 1) | (ids >= pool.shape[0])]
    if bad.size:
        raise ConfigError(f"{name} has id {bad[0]}; 1..{pool.shape[0] - 1} are accepted")
