"""How products of a few rows by a weight are launched, and how their work is shared out.

CUDA C++ in files beside this one: TileLang's own product takes no operand that goes from memory to its registers and is
converted there, and weights that pass through shared memory on their way are at most half as fast.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

BLOCK_ROWS = 8
"""Rows of x in one product of the tensor cores."""
TILE = 32
"""Rows of the weight that a warp has, and columns of the smallest piece of a sum."""
WARPS = 8
LARGE_TILES_DOWN = 800
"""Rows of tiles of a weight that keeps all processors busy with four of them to a block."""
PARTIAL_STRIDE = 36
"""Floats of shared memory for a row of x and the TILE rows of a warp."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the work of a product is shared out. Sums of columns are formed in an order that nothing else decides."""

    blocks: int
    """Blocks of 8 rows of x that a warp has."""
    down: int
    """Warps next to each other along the rows of the weight."""
    across: int
    """Warps that share out the columns."""
    splits: int
    """Blocks of threads that share them out, a cluster."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.down * self.across

    @property
    def resident(self) -> int:
        """Blocks that a processor must have room for at a time, if need be by registers that go to memory."""
        return 2 if self.blocks == self.down == 4 else 1

    @property
    def partial_floats(self) -> int:
        """Shared memory for sums."""
        return self.down * self.across * BLOCK_ROWS * self.blocks * PARTIAL_STRIDE


def groups_per_load(width_groups: int) -> int:
    """Groups of 32 columns that are loaded at once: 4, or as many as divide the width."""
    return next(count for count in (4, 2, 1) if width_groups % count == 0)


def rows_per_warp(num_rows: int) -> int:
    """Blocks of 8 rows of x that a warp has of num_rows."""
    return next(blocks for blocks in (1, 2, 4, 8) if num_rows <= BLOCK_ROWS * blocks or blocks == 8)


def invariant_sharing(num_rows: int) -> Sharing:
    """The same order of sums for every number of rows and every weight."""
    return Sharing(rows_per_warp(num_rows), down=2, across=4, splits=1)


@functools.cache
def sharing(num_rows: int, tiles_down: int, width_groups: int, processors: int) -> Sharing:
    """How to share out the product of num_rows, at least 1, by a weight of tiles_down x width_groups tiles."""
    blocks = rows_per_warp(num_rows)
    down = 4 if blocks == 4 and tiles_down >= LARGE_TILES_DOWN else min(blocks, 2)
    across = max(WARPS // down, 1)
    steps = width_groups // groups_per_load(width_groups)
    places = -(-tiles_down // down) * -(-num_rows // (BLOCK_ROWS * blocks))
    fitting = [splits for splits in (1, 2, 4, 8) if places * splits <= processors and splits * across <= steps]
    return Sharing(blocks, down, across, max(fitting, default=1))
