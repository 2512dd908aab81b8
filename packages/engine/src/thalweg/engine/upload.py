"""From numpy arrays on the host to tensors on the device, without waiting for the copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thalweg.interfaces import Backend

_ALIGNMENT = 16
"""Bytes: no kernel asks for more."""


class Uploader:
    """Ships arrays through pinned memory, so that a copy neither blocks the host nor reads an array that changes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __call__(self, array: NDArray[Any]) -> torch.Tensor:
        """The array on the device, in stream order."""
        source = torch.from_numpy(np.ascontiguousarray(array))
        staged: torch.Tensor = self._backend.empty(source.shape, source.dtype, pinned=True)
        return staged.copy_(source).to(self._backend.device, non_blocking=True)

    def all(self, arrays: Sequence[NDArray[Any]]) -> list[torch.Tensor]:
        """The arrays on the device, in stream order, by one copy. They share memory and live as long as each other."""
        ends, total = [], 0
        for array in arrays:
            ends.append(total + array.nbytes)
            total = -(-ends[-1] // _ALIGNMENT) * _ALIGNMENT
        staged: torch.Tensor = self._backend.empty((total,), torch.uint8, pinned=True)
        host = staged.numpy()
        for array, end in zip(arrays, ends, strict=True):
            host[end - array.nbytes : end] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        moved = staged.to(self._backend.device, non_blocking=True)
        return [
            moved[end - array.nbytes : end].view(_dtype(array)).view(array.shape)
            for array, end in zip(arrays, ends, strict=True)
        ]

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of pinned memory on the device, in stream order; it must not change until then."""
        return tensor.to(self._backend.device, non_blocking=True)

    def fields(self, values: dict[str, Any]) -> dict[str, Any]:
        """A dictionary with its arrays, nested ones too, on the device; everything else stays as it is."""
        moved = iter(self.all(list(_arrays(values))))
        converted: dict[str, Any] = _with_tensors(values, moved)
        return converted


def _arrays(value: Any) -> Iterator[NDArray[Any]]:
    """The arrays of a nested dictionary, in its order."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _arrays(item)
    elif isinstance(value, np.ndarray):
        yield value


def _with_tensors(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if isinstance(value, dict):
        return {key: _with_tensors(item, tensors) for key, item in value.items()}
    return next(tensors) if isinstance(value, np.ndarray) else value


def _dtype(array: NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype
