"""How many cache blocks and state slots a deployment gets."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from thalweg.cache import (
    agree_num_blocks,
    block_table_width,
    check_num_blocks,
    free_bytes_for_blocks,
    max_sequence_length,
    min_num_blocks,
    num_blocks_in,
    num_state_slots,
)
from thalweg.engine.config import EngineConfig
from thalweg.interfaces import CacheLayout, CapacityError, Communicator

CPU_MEMORY_FRACTION = 0.5
"""Default share of the host's memory for the cache when the model runs on the CPU."""
DEVICE_MEMORY_FRACTION = 0.9
"""Default share of a device's memory for everything."""


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Sizes of the pools, null ids included, and of the block tables."""

    num_blocks: int
    num_state_slots: int
    table_width: int


def size_pools(
    config: EngineConfig,
    layout: CacheLayout,
    total_bytes: int | None = None,
    *,
    default_fraction: float = CPU_MEMORY_FRACTION,
    draft_length: int = 0,
    other_bytes: int = 0,
    other_slot_bytes: int = 0,
    communicator: Communicator | None = None,
) -> PoolSizes:
    """Sizes for a deployment.

    Positions run past `max_model_len` by the drafts of a step and, with asynchronous scheduling, by what the step in
    flight may commit. Without `num_blocks` the cache holds `max_num_seqs` sequences of `max_model_len` tokens, or as
    many blocks as the memory fraction allows if that is less. total_bytes: memory of the device; None asks the host.
    other_bytes: what takes of it beside the cache: the draft pool on the CPU; on a device everything else.
    other_slot_bytes: what token counts take of it per state slot. communicator: of the ranks that must agree.
    Raises CapacityError when the longest sequence would fill more than 80 % of the blocks, or when the wanted number of
    blocks is more than the device can hold.
    """
    scheduler, cache = config.scheduler, config.cache
    length = max_sequence_length(scheduler.max_model_len, draft_length, asynchronous=scheduler.async_scheduling)
    slots = num_state_slots(scheduler.max_num_seqs, cache.slot_ratio)
    other_bytes += slots * other_slot_bytes
    total_bytes = host_memory_bytes() if total_bytes is None else total_bytes
    num_blocks = cache.num_blocks
    if num_blocks is None:
        fraction = default_fraction if cache.memory_fraction is None else cache.memory_fraction
        num_blocks = _enough_blocks(length, scheduler.max_num_seqs, layout.tokens_per_block)
        if layout.block_bytes:
            free = free_bytes_for_blocks(total_bytes, fraction, other_bytes, slots, layout, has_copy_buffer=False)
            num_blocks = min(num_blocks, agree_num_blocks([_least(num_blocks_in(free, layout), communicator)]))
    elif (wanted := num_blocks * layout.block_bytes + slots * layout.slot_bytes) > total_bytes - other_bytes:
        raise CapacityError(
            f"num_blocks is {num_blocks}; with {slots} state slots the cache takes {wanted} bytes, drafts and token "
            f"counts take {other_bytes}, the device has {total_bytes}"
        )
    check_num_blocks(num_blocks, length, layout.tokens_per_block)
    return PoolSizes(num_blocks, slots, block_table_width(length, layout.tokens_per_block))


def smallest_pools(config: EngineConfig, layout: CacheLayout, *, draft_length: int = 0) -> PoolSizes:
    """The least that the scheduler accepts, with the state slots and the table width of any other size."""
    scheduler = config.scheduler
    length = max_sequence_length(scheduler.max_model_len, draft_length, asynchronous=scheduler.async_scheduling)
    num_blocks = max(2, min_num_blocks(length, layout.tokens_per_block))
    if config.cache.num_blocks is not None:
        check_num_blocks(config.cache.num_blocks, length, layout.tokens_per_block)
        num_blocks = config.cache.num_blocks
    slots = num_state_slots(scheduler.max_num_seqs, config.cache.slot_ratio)
    return PoolSizes(num_blocks, slots, block_table_width(length, layout.tokens_per_block))


def host_memory_bytes() -> int:
    """Physical memory of this machine, or of its control group where that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = file.read().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def _least(num_blocks: int, communicator: Communicator | None) -> int:
    """The minimum over the ranks."""
    if communicator is None:
        return num_blocks
    return int(communicator.all_reduce_min(np.array([min(num_blocks, 2**31 - 1)], np.int32))[0])


def _enough_blocks(length: int, num_sequences: int, tokens_per_block: int) -> int:
    """Blocks for that many sequences of that length, and for the rule that one fills at most a part of them."""
    per_sequence = -(-length // tokens_per_block)
    return 1 + max(num_sequences * per_sequence, min_num_blocks(length, tokens_per_block))
