"""What kernels on rows share: how a row lies over threads, sums over it, and what is asked of tensors.

Thread t of a row takes `vector` neighbouring columns at a time, t * vector first, then as many threads further on, so
that a warp reads one stretch. Groups of 32 columns lie in 32 / vector neighbouring lanes.

TileLang 0.1.15 keeps what it has read of a local buffer as one vector for the rest of the block of code, even if the
buffer is written in between. So no buffer is read as a vector both before and after it is written: results go to
another one.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator, no-any-return"

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.sm90.library import tilelang
from thalweg.kernels.sm90.tensors import span

WARP = 32
GROUP = 32
MOST_WARPS = 32

Macro = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class RowShape:
    """How the columns of a row lie over threads."""

    width: int
    """Columns, a multiple of 32."""
    vector: int
    """Columns that a thread takes at once."""
    warps: int
    """Of one row."""
    rounds: int
    """How often each thread takes a vector."""
    rows: int
    """Rows of a block: more than one only where a row is one warp's."""

    @property
    def row_threads(self) -> int:
        """Threads of one row."""
        return WARP * self.warps

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.row_threads * self.rows

    @property
    def lanes(self) -> int:
        """Neighbouring lanes that hold a group of 32 columns."""
        return GROUP // self.vector

    @property
    def step(self) -> int:
        """Columns between two vectors of a thread."""
        return self.row_threads * self.vector


@functools.cache
def row_shape(name: str, width: int, most_warps: int = 20, rows: int = 4) -> RowShape:
    """The shape for rows of a width. Raises ConfigError, which names them, for one that is no multiple of 32."""
    if width <= 0 or width % GROUP:
        raise ConfigError(f"{name} has rows of {width} columns; a positive multiple of {GROUP} is required")
    vector = next(vector for vector in (8, 4, 2, 1) if width % (WARP * vector) == 0)
    vectors = width // (WARP * vector)
    warps = max(count for count in range(1, most_warps + 1) if vectors % count == 0)
    return RowShape(width, vector, warps, vectors // warps, rows if warps == 1 else 1)


@functools.cache
def row_sum(warps: int) -> Macro:
    """Macro (value, parts, turn) -> the sum of a value over the threads of a row, in one order, for all of them.

    parts: shared float32 [turns, warps], of which those of this turn must not be in use.
    """
    T = tilelang().language

    @T.macro
    def over_warp(value: Any) -> Any:
        total = T.alloc_var("float32")
        total = value
        for step in T.unroll(5):
            total = total + T.shfl_xor(total, 16 >> step)
        return total

    @T.macro
    def over_warps(value: Any, parts: Any, turn: Any) -> Any:
        part = T.alloc_var("float32")
        part = value
        for step in T.unroll(5):
            part = part + T.shfl_xor(part, 16 >> step)
        if T.get_thread_binding() % WARP == 0:
            parts[turn, T.get_thread_binding() // WARP] = part
        T.sync_threads()
        total = T.alloc_var("float32")
        total = 0.0
        for warp in T.unroll(warps):
            total = total + parts[turn, warp]
        return total

    return (lambda value, parts, turn: over_warp(value)) if warps == 1 else over_warps


def check_weight(name: str, weight: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ConfigError unless a weight is contiguous float32 or bfloat16 of a shape."""
    if weight.dtype not in (torch.float32, torch.bfloat16):
        raise ConfigError(f"{name} has dtype {weight.dtype}; torch.float32 or torch.bfloat16 is required")
    if tuple(weight.shape) != shape:
        raise ConfigError(f"{name} has shape {list(weight.shape)}; {list(shape)} is expected")
    check_contiguous(**{name: weight})


def check_contiguous(**tensors: Tensor) -> None:
    """Raise ConfigError, which names the tensor, for one that is not contiguous or not 16-byte aligned."""
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ConfigError(f"{name} has strides {list(tensor.stride())}; contiguous memory is required")
        check_alignment(name, tensor, 16)


def check_alignment(name: str, tensor: Tensor, size: int) -> None:
    """Raise ConfigError for a tensor that does not begin at a multiple of `size` bytes."""
    if tensor.data_ptr() % size:
        raise ConfigError(f"{name} begins at byte {tensor.data_ptr() % size} of {size}; aligned memory is required")


def flat_rows(name: str, rows: Tensor, vector: int) -> Tensor:
    """Everything from the first to the last element of rows [n, K], one-dimensional; n > 0, and rows may lie apart.

    Raises ConfigError unless every vector of a row can be read at once.
    """
    size = rows.element_size() * vector
    if rows.stride(1) != 1 or (rows.shape[0] > 1 and rows.stride(0) % vector):
        raise ConfigError(
            f"{name} has strides {list(rows.stride())}; 1 in a row, and a multiple of {vector} between rows is required"
        )
    check_alignment(name, rows, size)
    return span(rows)
