"""Blocks of products of many rows by a weight, and which of them are fastest for a size."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

WEIGHT_ROWS = 128
"""Of a block: 64 for each of two groups of four warps."""
THREADS = 2 * WEIGHT_ROWS
STAGED_COLUMN = 132
"""Floats of shared memory for a row of x and the 128 sums of a block."""
LEAST_STEPS = 4
"""Of each block that shares out columns."""
MOST_SUMMED_ROWS = 1024
"""Rows of x whose sums the blocks of a cluster exchange: more were not tried."""


@dataclass(frozen=True, slots=True)
class TileShape:
    """Of a block."""

    rows: int
    """Rows of x."""
    columns: int
    """Columns that are copied at once."""
    stages: int
    """Copies under way."""
    splits: int = 1
    """Blocks that share out the columns, a cluster."""

    @property
    def staged_floats(self) -> int:
        """Shared memory for results on their way out: bfloat16, or sums that are to be added up."""
        return self.rows * (STAGED_COLUMN if self.splits > 1 else WEIGHT_ROWS // 2)


@dataclass(frozen=True, slots=True)
class Cost:
    """What blocks of a shape take, measured on an H200."""

    shape: TileShape
    step_us: float
    """For each copy of columns."""
    block_us: float = 4.0
    """To begin and to end."""


def operand_layout(row: int, column: int) -> tuple[int, int]:
    """Thread and register of an element of a register operand."""
    thread = row // 16 * 32 + row % 8 * 4 + column % 8 // 2
    return thread, column % 2 + row % 16 // 8 * 2 + column % 16 // 8 * 4 + column // 16 * 8


def sum_layout(row: int, column: int) -> tuple[int, int]:
    """Thread and register of a sum."""
    return row // 16 * 32 + row % 8 * 4 + column % 8 // 2, column // 8 * 4 + row % 16 // 8 * 2 + column % 2


@functools.cache
def fastest_shape(costs: tuple[Cost, ...], num_rows: int, places: int, depth: int, processors: int) -> TileShape:
    """The shape whose blocks take the least time, one block per processor at a time; places: blocks along the weight.

    Columns are shared out only where processors would have nothing to do: adding up sums costs more than it saves
    elsewhere.
    """

    def num_blocks(shape: TileShape, splits: int) -> int:
        return places * splits * -(-num_rows // shape.rows)

    def time_us(cost: Cost, splits: int) -> float:
        steps = -(-depth // cost.shape.columns)
        turns = -(-num_blocks(cost.shape, splits) // processors)
        return turns * (-(-steps // splits) * cost.step_us + cost.block_us)

    def can_split(shape: TileShape, splits: int) -> bool:
        has_columns = depth >= splits * LEAST_STEPS * shape.columns
        is_small = splits * shape.rows <= MOST_SUMMED_ROWS
        return splits == 1 or (has_columns and is_small and num_blocks(shape, splits) <= processors)

    choices = [
        (time_us(cost, splits), splits, cost.shape)
        for cost in costs
        for splits in (1, 2, 4, 8)
        if can_split(cost.shape, splits)
    ]
    _, splits, shape = min(choices, key=lambda choice: choice[:2])
    return replace(shape, splits=splits)
