"""What an argument must be before anything is computed with it."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np

from thalweg.interfaces import ConfigError, shown

MAX_DRAFT_LENGTH = 1024
"""Longer drafts are taken for a mistake, or for a damaged file."""


def require_array(name: str, value: Any, dtype: type[np.generic], *, num_dimensions: int) -> None:
    """Raise ValueError unless the value is an array of exactly this dtype and so many dimensions."""
    if isinstance(value, np.ndarray) and value.dtype == dtype and value.ndim == num_dimensions:
        return
    dimensions = "one dimension" if num_dimensions == 1 else f"{num_dimensions} dimensions"
    raise ValueError(f"{name} is a {_kind(value)}; an array of {np.dtype(dtype)} with {dimensions} is needed")


def require_integers(name: str, value: Any) -> None:
    """Raise ValueError unless the value is an array of integers with one dimension."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim == 1:
        return
    raise ValueError(f"{name} is a {_kind(value)}; an array of integers with one dimension is needed")


def require_integer(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise ConfigError unless the value is an int, and no bool, within the limits."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if is_integer and value >= least and (most is None or value <= most):
        return
    limits = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise ConfigError(f"{name} is {shown(value)}; an integer {limits} is needed")


def require_draft_length(value: Any) -> None:
    """Raise ConfigError unless the value can be the number of drafts of a step."""
    require_integer("draft_length", value, 1, MAX_DRAFT_LENGTH)


def is_real(value: Any) -> TypeGuard[int | float]:
    """Whether the value is a Python number; true and false, which Python counts among them, are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    return f"{value.dtype} array of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
