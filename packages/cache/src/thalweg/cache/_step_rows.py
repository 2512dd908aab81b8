"""The checked sequences of a step and their query rows, as both kinds of host metadata need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.cache.geometry import CacheGeometry
from thalweg.cache.ring import expand_rows
from thalweg.interfaces import ConfigError

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class MetadataShape:
    """The lengths that index arithmetic depends on."""

    tokens_per_block: int
    window_size: int
    ring_length: int
    ratios: tuple[int, ...]

    def __post_init__(self) -> None:
        for ratio in self.ratios:
            if ratio < 1 or self.tokens_per_block % ratio:
                raise ConfigError(
                    f"ratios has {ratio}; positive divisors of tokens_per_block ({self.tokens_per_block}) are accepted"
                )
        if self.window_size and self.ring_length < self.window_size:
            raise ConfigError(f"ring_length is {self.ring_length}; window_size {self.window_size} needs at least that")

    @classmethod
    def of(cls, geometry: CacheGeometry) -> MetadataShape:
        """The lengths of a geometry."""
        return cls(geometry.tokens_per_block, geometry.window_size, geometry.ring_length, geometry.ratios)


class StepRows:
    """The checked sequences of a step, and their query rows."""

    def __init__(
        self,
        shape: MetadataShape,
        query_lengths: ArrayLike,
        context_lengths: ArrayLike,
        state_slots: ArrayLike,
        block_offsets: ArrayLike,
        block_ids: ArrayLike,
    ) -> None:
        self.lengths = np.asarray(query_lengths, np.int64)
        self.contexts = np.asarray(context_lengths, np.int64)
        self.slots = np.asarray(state_slots, np.int64)
        self.block_offsets = np.asarray(block_offsets, np.int64)
        self.block_ids = np.asarray(block_ids, np.int64)
        count = self.lengths.size
        for name, array, size in (
            ("context_lengths", self.contexts, count),
            ("state_slots", self.slots, count),
            ("block_offsets", self.block_offsets, count + 1),
        ):
            if array.size != size:
                raise ConfigError(f"{name} has {array.size} entries; {count} query lengths need {size}")
        self.first = self.contexts - self.lengths
        if count and (self.lengths.min() < 1 or self.first.min() < 0):
            row = int(np.argmax((self.lengths < 1) | (self.first < 0)))
            raise ConfigError(
                f"row {row} has query length {self.lengths[row]} and context length {self.contexts[row]}; "
                "1 <= query <= context is needed"
            )
        self.num_blocks = np.diff(self.block_offsets)
        needed = self._blocks_needed(shape)
        if (self.num_blocks < needed).any():
            row = int(np.argmax(self.num_blocks < needed))
            raise ConfigError(
                f"row {row} has {self.num_blocks[row]} blocks; its {self.contexts[row]} tokens need {needed[row]}"
            )
        self.sequence, rank = expand_rows(self.lengths)
        self.position = self.first[self.sequence] + rank

    def _blocks_needed(self, shape: MetadataShape) -> NDArray[np.int64]:
        """Blocks that hold at least one entry which exists after the step."""
        needed = np.zeros(self.lengths.size, np.int64)
        for ratio in shape.ratios:
            needed = np.maximum(needed, -(-(self.contexts // ratio) // (shape.tokens_per_block // ratio)))
        return needed

    def table(self, row: int) -> NDArray[np.int64]:
        """The blocks of a sequence."""
        return self.block_ids[self.block_offsets[row] : self.block_offsets[row + 1]]

    def tables(self, width: int) -> Ints:
        """[N, width] block tables, 0 beyond a sequence's own blocks."""
        if width < 1 or (self.num_blocks.size and self.num_blocks.max() > width):
            raise ConfigError(f"table_width is {width}; a sequence has {self.num_blocks.max(initial=0)} blocks")
        tables = np.zeros((self.lengths.size, width), np.int32)
        row, column = expand_rows(self.num_blocks)
        tables[row, column] = self.block_ids
        return tables


def per_sequence(name: str, values: ArrayLike | None, count: int) -> NDArray[np.int64]:
    """One number from 0 per sequence, int64 [N]; None = 0 for all."""
    if values is None:
        return np.zeros(count, np.int64)
    array = np.asarray(values, np.int64)
    if array.shape != (count,):
        raise ConfigError(f"{name} has {array.size} entries; one per row, {count}, is needed")
    if count and array.min() < 0:
        raise ConfigError(f"{name} has {array.min()}; numbers from 0 are accepted")
    return array


def fields_without(arrays: Any, names: Sequence[str]) -> dict[str, Any]:
    """The fields of a dataclass by name, but for some."""
    return {field.name: getattr(arrays, field.name) for field in fields(arrays) if field.name not in names}


def offsets_of(counts: NDArray[np.int64]) -> Ints:
    """[N+1] boundaries of stretches of the given lengths."""
    return int32(np.concatenate(([0], np.cumsum(counts))))


def int32(values: NDArray[Any]) -> Ints:
    """A C-contiguous int32 array."""
    return np.ascontiguousarray(values, np.int32)


def none(count: int) -> Ints:
    """[count] slots that mean "none"."""
    return np.full(count, -1, np.int32)
