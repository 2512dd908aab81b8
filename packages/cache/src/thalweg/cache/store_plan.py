"""What of a sequence goes to a store and comes back: which blocks and windows, and in which order layers need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg.cache.replay import SequenceStart
from thalweg.interfaces import CacheLayout, ConfigError, LayerSpan


@dataclass(frozen=True, slots=True)
class SavePlan:
    """What has become complete of a sequence since it was last asked."""

    first_chunk: int
    """Chunk k of a sequence is its tokens [k * B, (k + 1) * B), B tokens per block."""
    block_ids: tuple[int, ...]
    """Chunk first_chunk + i lies in block_ids[i]."""
    window_ends: tuple[int, ...]
    """Lengths, increasing multiples of B, whose windows the slot still holds and that are exact."""


def plan_save(
    layout: CacheLayout,
    num_tokens: int,
    saved_tokens: int,
    block_table: Sequence[int],
    start: SequenceStart,
    *,
    drafts_written: int = 0,
) -> SavePlan:
    """What to save of a sequence of `num_tokens` computed tokens, of which the blocks of `saved_tokens` are saved.

    saved_tokens: a multiple of B, 0 at first; what a hit brought is never saved again. layout: of this engine's pools.
    drafts_written: as for `window_ends`.
    """
    grain = layout.tokens_per_block
    if saved_tokens < 0 or saved_tokens % grain:
        raise ConfigError(f"saved_tokens is {saved_tokens}; a multiple of {grain} is needed")
    if num_tokens > len(block_table) * grain:
        raise ConfigError(f"num_tokens is {num_tokens}; the {len(block_table)} blocks hold {len(block_table) * grain}")
    first = max(saved_tokens, start.reused_tokens) // grain
    blocks = tuple(block_table[first : num_tokens // grain])
    ends = [end for end in window_ends(layout, num_tokens, start.exact_from, drafts_written) if end > first * grain]
    return SavePlan(first, blocks, tuple(ends))


def window_ends(layout: CacheLayout, num_tokens: int, exact_from: int = 0, drafts_written: int = 0) -> list[int]:
    """Multiples of B, increasing, whose last window is still in the ring after `num_tokens` tokens.

    exact_from: first position whose window key may be stored. drafts_written: rows that steps wrote beyond
    `num_tokens`, for drafts that were rejected or are not decided yet. A ring of R rows holds the last R positions
    written.
    """
    grain, window = layout.tokens_per_block, layout.window_size
    if window == 0:
        return []
    oldest = max(num_tokens + drafts_written - layout.ring_length, exact_from)
    # A window that begins with the sequence is shorter; one that was cut at `oldest` is not whole.
    lowest = oldest + window if oldest > 0 else 1
    return list(range(-(-lowest // grain) * grain, num_tokens + 1, grain))


def layer_waves(layout: CacheLayout) -> tuple[LayerSpan, ...]:
    """Bytes of a block in the order in which layers first read them; the state goes before all of them."""
    return layout.block_spans


def whole_block(layout: CacheLayout) -> tuple[LayerSpan, ...]:
    """All bytes of a block as one wave, for a load that is complete before the sequence may run."""
    first = layout.block_spans[0].layer if layout.block_spans else 0
    return (LayerSpan(first, 0, layout.block_payload_bytes),)


def wave_segments(wave: LayerSpan, block_ids: Sequence[int]) -> NDArray[np.int64]:
    """[n, 3] (block, first byte, number of bytes) of a wave, one row per block, in their order."""
    segments = np.empty((len(block_ids), 3), np.int64)
    segments[:, 0] = block_ids
    segments[:, 1:] = wave.offset, wave.length
    return segments
