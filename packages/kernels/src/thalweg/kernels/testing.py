"""Helpers for tests that compare ops with recorded vectors, with a reference, and with what they declare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thalweg.kernels.registry import Implementation

VectorLoader = Callable[[str], dict[str, Tensor]]
RecordLoader = Callable[[str], Any]
Rows = Tensor | tuple[Tensor, ...]
RowFunction = Callable[[Tensor], Rows]
RowCall = Callable[[Callable[..., Any], Tensor], Rows]


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


def broken_promises(
    implementation: Implementation,
    call: RowCall,
    num_rows: int = 65,
    counts: Sequence[int] | None = None,
    threads: Sequence[int] = (1, 2),
    device: torch.device | str = "cpu",
) -> list[str]:
    """What an implementation declares and does not keep on an example; what it does not declare is not looked at.

    call: gives the function the rows of these ids, int64 [k] on `device`, and returns its results, whose first axis has
    one entry per id. What the function writes to, it must get as a fresh copy. A row is whatever the contract of the op
    treats on its own: a token, a sequence with its drafts, a query with its keys.
    """

    def compute(ids: Tensor) -> Rows:
        return call(implementation.function, ids)

    broken = []
    if implementation.deterministic:
        differing = runs_that_differ(compute, num_rows, threads, device)
        broken += [f"not deterministic: {label}" for label in differing]
    if implementation.batch_invariant:
        differing = rows_that_depend_on_the_batch(compute, num_rows, counts, threads, device)
        broken += [f"not batch-invariant: {label}" for label in differing]
    return broken


def runs_that_differ(
    compute: RowFunction, num_rows: int = 65, threads: Sequence[int] = (1, 2), device: torch.device | str = "cpu"
) -> list[str]:
    """Every repetition of `compute`, on all rows or on a few, that gave other bits than the first run.

    There is one with each number of threads. Before each, the memory that results will lie in is littered with NaN, so
    that what is read before it was written shows.
    """
    differing = []
    for count in sorted({min(5, num_rows), num_rows}):
        ids = torch.arange(count, device=device)
        first: tuple[Tensor, ...] | None = None
        for turn in (threads[0], *threads):
            with _threads(turn):
                again = _as_tuple(compute(ids))
            if first is not None and not all(map(same_bits, again, first)):
                differing.append(f"{count} rows again, {turn} threads")
            first = again if first is None else first
            _litter(again)
    return differing


def rows_that_depend_on_the_batch(
    compute: RowFunction,
    num_rows: int = 65,
    counts: Sequence[int] | None = None,
    threads: Sequence[int] = (1, 2),
    device: torch.device | str = "cpu",
) -> list[str]:
    """Every batch in which a row of `compute` came out with other bits than among all `num_rows` rows.

    compute: takes row ids int64 [k] and returns one or more tensors whose first axis has one entry per id. Tried are
    all prefixes (or the given counts), single rows, a shuffle, the reversal, and repeated rows, some of them as padding
    behind others. With more numbers of threads than one, the others get the shuffle and two prefixes.
    """
    batches = _batches(num_rows, counts)
    differing = []
    with _threads(threads[0]):
        whole = _as_tuple(compute(torch.arange(num_rows, device=device)))
    for turn, count in enumerate(threads):
        with _threads(count):
            for label, batch in batches.items():
                if turn and label not in ("1 rows", "17 rows", "shuffled"):
                    continue
                ids = batch.to(device)
                parts = _as_tuple(compute(ids))
                if not all(same_bits(part, full[ids]) for part, full in zip(parts, whole, strict=True)):
                    differing.append(f"{label}, {count} threads")
    return differing


def _batches(num_rows: int, counts: Sequence[int] | None) -> dict[str, Tensor]:
    """Row ids of each batch by what it is."""
    everything = torch.arange(num_rows)
    few, middle = everything[-3:], num_rows // 2
    return {
        **{f"{count} rows": everything[:count] for count in (counts or range(1, num_rows + 1))},
        **{f"row {row} alone": everything[row : row + 1] for row in range(1, num_rows, 1 + num_rows // 4)},
        "shuffled": torch.randperm(num_rows, generator=torch.Generator().manual_seed(num_rows), device="cpu"),
        "reversed": everything.flip(0),
        "one row repeated": everything[middle].expand(17),
        "3 rows, padded to 16": torch.cat((few, everything[:1].expand(16 - few.shape[0]))),
        "3 rows, padded to 64": torch.cat((few, everything[:1].expand(64 - few.shape[0]))),
    }


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _litter(results: tuple[Tensor, ...]) -> None:
    """Leave NaN, or ones in every bit, in memory of the sizes of these tensors."""
    garbage = [torch.empty_like(result) for result in results for _ in range(4)]
    for tensor in garbage:
        tensor.view(-1).view(torch.uint8).fill_(0xFF)


def _as_tuple(result: Rows) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
