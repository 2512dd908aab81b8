"""How many blocks and state slots fit, and whether they are enough."""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.interfaces import CacheLayout, CapacityError, ConfigError

TABLE_WIDTH_MULTIPLE = 64
MAX_LENGTH_PERCENT = 80
"""The longest sequence may fill this part of the paged pool, so that a second one can make progress."""


def num_state_slots(max_num_sequences: int, ratio: float = 1.2) -> int:
    """State slots for a number of running sequences; slot 0 and a reserve for sequences that are leaving included."""
    if max_num_sequences < 1:
        raise ConfigError(f"max_num_sequences is {max_num_sequences}; at least 1 is needed")
    if not ratio >= 1.0:
        raise ConfigError(f"ratio is {ratio}; at least 1.0 is needed, one slot per running sequence")
    return int(max_num_sequences * ratio) + 1


def max_sequence_length(max_model_len: int, draft_length: int, *, asynchronous: bool = False) -> int:
    """Longest sequence the tables must hold: the user's limit, the drafts, and what one step in flight may add."""
    in_flight = draft_length + 1 if asynchronous else 0
    return max_model_len + draft_length + in_flight + draft_length


def block_table_width(sequence_length: int, tokens_per_block: int) -> int:
    """Columns of a block table for sequences up to that length, a multiple of 64."""
    num_blocks = -(-sequence_length // tokens_per_block)
    return -(-num_blocks // TABLE_WIDTH_MULTIPLE) * TABLE_WIDTH_MULTIPLE


def num_blocks_in(num_bytes: int, layout: CacheLayout) -> int:
    """Blocks that fit into a number of bytes; 0 if it is negative."""
    if layout.block_bytes == 0:
        raise ConfigError("block_bytes is 0; a model without compressed layers needs no blocks")
    return max(0, num_bytes // layout.block_bytes)


def free_bytes_for_blocks(
    total_bytes: int,
    memory_fraction: float,
    peak_bytes: int,
    state_slots: int,
    layout: CacheLayout,
    *,
    has_copy_buffer: bool = True,
) -> int:
    """Device bytes left for blocks; negative if even the state pool does not fit.

    peak_bytes: use of a profiling step without cache. A copy buffer (saving states to a store) doubles the state pool.
    """
    if not 0.0 < memory_fraction <= 1.0:
        raise ConfigError(f"memory_fraction is {memory_fraction}; above 0 and up to 1 is accepted")
    state_bytes = state_slots * layout.slot_bytes * (2 if has_copy_buffer else 1)
    return int(total_bytes * memory_fraction) - peak_bytes - state_bytes


def agree_num_blocks(per_rank: Sequence[int]) -> int:
    """The number of blocks that every rank can hold: the minimum, rounded down to even."""
    if not per_rank:
        raise ConfigError("per_rank is empty; one number of blocks per rank is needed")
    return min(per_rank) // 2 * 2


def min_num_blocks(sequence_length: int, tokens_per_block: int) -> int:
    """Smallest pool, the null block included, of which a sequence of that length fills at most 80 %."""
    return -(-sequence_length * 100 // (MAX_LENGTH_PERCENT * tokens_per_block))


def check_num_blocks(num_blocks: int, sequence_length: int, tokens_per_block: int) -> None:
    """Raise CapacityError if there are no blocks or the longest sequence would fill more than 80 % of them.

    sequence_length: see `max_sequence_length`.
    """
    if num_blocks <= 0:
        raise CapacityError(
            f"num_blocks is {num_blocks}; no memory is left for the cache. Raise memory_fraction, or lower "
            "max_num_seqs or max_num_batched_tokens"
        )
    needed = min_num_blocks(sequence_length, tokens_per_block)
    if num_blocks < needed:
        longest = tokens_per_block * num_blocks * MAX_LENGTH_PERCENT // 100
        raise CapacityError(
            f"sequences of up to {sequence_length} tokens need {needed} blocks, {num_blocks} are there; "
            f"they allow {longest} tokens. Lower max_model_len or give the cache more memory"
        )
