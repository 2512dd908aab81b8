"""From numpy arrays on the host to tensors on the device, without waiting for the copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thalweg.interfaces import Backend


class Uploader:
    """Ships arrays through pinned memory, so that a copy neither blocks the host nor reads an array that changes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __call__(self, array: NDArray[Any]) -> torch.Tensor:
        """The array on the device, in stream order."""
        source = torch.from_numpy(np.ascontiguousarray(array))
        staged: torch.Tensor = self._backend.empty(source.shape, source.dtype, pinned=True)
        return staged.copy_(source).to(self._backend.device, non_blocking=True)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of pinned memory on the device, in stream order; it must not change until then."""
        return tensor.to(self._backend.device, non_blocking=True)

    def fields(self, values: dict[str, Any]) -> dict[str, Any]:
        """A dictionary with its arrays, nested ones too, on the device; everything else stays as it is."""
        return {name: self._convert(value) for name, value in values.items()}

    def _convert(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._convert(item) for key, item in value.items()}
        return self(value) if isinstance(value, np.ndarray) else value
