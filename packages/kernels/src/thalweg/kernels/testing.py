"""Helpers for tests that compare ops with recorded vectors, with a reference, and with themselves in another batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

VectorLoader = Callable[[str], dict[str, Tensor]]
RecordLoader = Callable[[str], Any]
RowFunction = Callable[[Tensor], Tensor | tuple[Tensor, ...]]


def load_vectors(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by key."""
    with np.load(path) as archive:
        return {key: archive[key] for key in archive.files}


def from_bf16_bits(bits: NDArray[Any]) -> Tensor:
    """bfloat16 tensor of stored uint16 bit patterns."""
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def bf16_ulps(actual: Tensor, expected: Tensor) -> int:
    """Largest distance of two tensors, both cast to bfloat16, in steps of that format; +0 and -0 are one step apart."""

    def ordinal(x: Tensor) -> Tensor:
        bits = x.to(torch.float32).to(torch.bfloat16).view(torch.int16).to(torch.int32)
        return torch.where(bits < 0, -(bits & 0x7FFF) - 1, bits)

    if actual.numel() == 0:
        return 0
    return int((ordinal(actual) - ordinal(expected)).abs().max())


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Frobenius norm of the difference over that of the expectation."""
    difference = (actual.to(torch.float64) - expected.to(torch.float64)).norm()
    return float(difference / expected.to(torch.float64).norm().clamp(min=1e-300))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors agree in shape, dtype and every bit (NaN included)."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def rows_that_depend_on_the_batch(
    compute: RowFunction, num_rows: int = 65, counts: Sequence[int] | None = None, threads: Sequence[int] = (1, 2)
) -> list[str]:
    """Every batch in which a row of `compute` came out with other bits than among all `num_rows` rows.

    compute: takes row ids int64 [k] and returns one or more tensors whose first axis has one entry per id. Tried are
    all prefixes (or the given counts), a shuffle, the reversal and repeated rows, with each number of threads; after
    the first number of threads every eighth prefix is enough.
    """
    shuffle = torch.randperm(num_rows, generator=torch.Generator().manual_seed(num_rows))
    batches = {f"{count} rows": torch.arange(count) for count in (counts or range(1, num_rows + 1))}
    batches["shuffled"] = shuffle
    batches["reversed"] = torch.arange(num_rows).flip(0)
    batches["one row repeated"] = torch.full((17,), num_rows // 2)
    before = torch.get_num_threads()
    differing = []
    try:
        torch.set_num_threads(threads[0])
        whole = _as_tuple(compute(torch.arange(num_rows)))
        for turn, count in enumerate(threads):
            torch.set_num_threads(count)
            for label, ids in batches.items():
                if turn and label.endswith(" rows") and ids.shape[0] % 8 > 1:
                    continue
                parts = _as_tuple(compute(ids))
                if not all(same_bits(part, full[ids]) for part, full in zip(parts, whole, strict=True)):
                    differing.append(f"{label}, {count} threads")
    finally:
        torch.set_num_threads(before)
    return differing


def _as_tuple(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
