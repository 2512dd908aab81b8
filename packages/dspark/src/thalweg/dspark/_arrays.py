"""What an argument must be before numpy computes with it."""

from __future__ import annotations

from typing import Any

import numpy as np


def require_array(name: str, value: Any, dtype: type[np.generic], *, num_dimensions: int) -> None:
    """Raise ValueError unless the value is an array of exactly this dtype and so many dimensions."""
    if isinstance(value, np.ndarray) and value.dtype == dtype and value.ndim == num_dimensions:
        return
    found = f"{value.dtype} array of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
    dimensions = "one dimension" if num_dimensions == 1 else f"{num_dimensions} dimensions"
    raise ValueError(f"{name} is a {found}; an array of {np.dtype(dtype)} with {dimensions} is needed")


def require_integers(name: str, value: Any) -> None:
    """Raise ValueError unless the value is an array of integers with one dimension."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim == 1:
        return
    found = f"{value.dtype} array of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
    raise ValueError(f"{name} is a {found}; an array of integers with one dimension is needed")
