"""Examples of ops that treat rows one by one: what holds their implementations to what they declare.

An example makes its tensors on the default device, so that `with torch.device(...)` makes it one for that device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels import Implementation
from thalweg.kernels.testing import RowCall, broken_promises

ROWS = 65
FEW = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64)
CARRIERS = (torch.float32, torch.float64)
FLOATS = (*CARRIERS, torch.bfloat16)
Op = Callable[..., Any]


@dataclass(frozen=True)
class RowCase:
    """One op, and arguments for it."""

    op: str
    make: Callable[..., RowCall]
    parameters: Mapping[str, Any]
    num_rows: int
    counts: Sequence[int] | None
    threads: Sequence[int]

    @property
    def label(self) -> str:
        return " ".join((self.op, *(str(value).removeprefix("torch.") for value in self.parameters.values())))

    def broken_promises(self, implementation: Implementation, device: str = "cpu") -> list[str]:
        """What an implementation of the op declares and does not keep."""
        with torch.device(device):
            call = self.make(**self.parameters)
            return broken_promises(implementation, call, self.num_rows, self.counts, self.threads, device)


CASES: list[RowCase] = []

Make = Callable[..., RowCall]


def rows_of(
    op: str,
    *,
    num_rows: int = ROWS,
    counts: Sequence[int] | None = FEW,
    always_two_threads: bool = False,
    **parameters: Sequence[Any],
) -> Callable[[Make], Make]:
    """Make a case for every combination of the parameters.

    counts: of rows in a batch; None = every number. Only the last case runs on two threads as well, unless
    `always_two_threads`: where other processes keep the machine busy, threads that wait for each other take long.
    """

    def register(make: Make) -> Make:
        combinations = list(itertools.product(*parameters.values()))
        for values in combinations:
            threads = (1, 2) if always_two_threads or values == combinations[-1] else (1,)
            given = dict(zip(parameters, values, strict=True))
            CASES.append(RowCase(op, make, given, num_rows, counts, threads))
        return make

    return register


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed + 1000 * len(shape) + shape[-1])
    values = scale * torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")
    return values.to(torch.get_default_device(), dtype)


def integers(low: int, high: int, *shape: int, seed: int = 0) -> Tensor:
    """int64 from low to high - 1, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator, device="cpu").to(torch.get_default_device())


def written(tensor: Tensor, write: Callable[[Tensor], None]) -> Tensor:
    """A copy of the tensor after something was written to it."""
    copy = tensor.clone()
    write(copy)
    return copy


def fields(result: Any) -> tuple[Tensor, ...]:
    """The tensors of a result with named fields."""
    return tuple(getattr(result, name) for name in type(result).__slots__)


@dataclass(frozen=True)
class Flat:
    """Rows of sequences, one sequence after the other: a sequence with its rows is what stands on its own.

    lengths: int64 [N] rows of each sequence that there is. most: of the longest.
    """

    lengths: Tensor
    most: int

    def pack(self, values: Tensor, ids: Tensor) -> Tensor:
        """values [N, most, ...] -> the rows of these sequences, [T, ...]."""
        return values[ids][self._is_row(ids)]

    def spread(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Back again: [k, most, ...], zeros where a sequence has no row."""
        result = torch.zeros(ids.shape[0], self.most, *rows.shape[1:], dtype=rows.dtype, device=rows.device)
        result[self._is_row(ids)] = rows
        return result

    def _is_row(self, ids: Tensor) -> Tensor:
        return torch.arange(self.most, device=ids.device) < self.lengths[ids][:, None]
