"""What the two kernels of attention on Hopper have in common around their device functions.

The kernels are CUDA C++ (cuda/attention_*.cuh), which TileLang launches and gives memory. In TileLang itself the same
three roles of warp groups took twice as long: under branches on the thread's index it keeps the descriptors of matrix
operands in registers of every lane, which spill, and it places memory fences so that they wait for records that were
fetched ahead. Besides, it has no permutation of bytes and no product of packed bfloat16, which decoding needs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.sm90.library import compiled

HEADS = 64
"""Heads of a block, the rows of one matrix instruction; missing ones are zeros."""
TILE = 64
"""Keys of a tile."""
THREADS = 384
"""Three warp groups."""
COLUMNS = 128
"""Columns come in multiples of this: two warp groups sum half of them each, in panels of 64."""


def shared_bytes(dim: int, tiles: int) -> int:
    """Shared memory of a block for lists of so many tiles, as struct Tiles has it."""
    columns = -(-dim // COLUMNS) * COLUMNS
    matrices = (HEADS + 2 * TILE) * columns + 2 * HEADS * TILE
    return 2 * matrices + 832 + tiles * (8 * TILE + 8)


def compiled_shell(function: Any, architecture: str) -> Any:
    """The compiled kernel of a function that leaves all work, and all barriers, to a device function."""
    return compiled(function, architecture, {"tl.disable_thread_storage_sync": True})


def check_queries(q: Tensor, scale: float) -> None:
    """Raise ConfigError unless the kernels take queries [n, H, D] like these."""
    dim = q.shape[2]
    if q.dtype != torch.bfloat16:
        raise ConfigError(f"q has dtype {q.dtype}; bfloat16 is required")
    if dim % 64 or not 0 < dim <= 512:
        raise ConfigError(f"q has heads of {dim} columns; 64, 128, ... 512 are accepted")
    if not scale > 0:
        raise ConfigError(f"scale is {scale}; a positive number is required")
