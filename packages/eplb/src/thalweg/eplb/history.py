"""What planners read: how many tokens each logical expert received, step by step."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import ConfigError

History: TypeAlias = NDArray[np.integer[Any]] | NDArray[np.floating[Any]]
"""[steps, layers, experts] tokens routed to each logical expert; forecasts may have fractions."""

MOST_COUNT = 2.0**100
"""Up to which the counts of all slots of a rank add up in float32, as the reference does."""


def check_history(history: History) -> History:
    """The history, in the byte order of the machine; ConfigError unless it is an array of three non-empty
    dimensions of numbers in 0..MOST_COUNT.
    """
    if not isinstance(history, np.ndarray) or history.dtype.kind not in "iuf":
        found = getattr(history, "dtype", type(history).__name__)
        raise ConfigError(f"history is of {found}; it must be an array of integers or floats")
    if history.ndim != 3 or 0 in history.shape:
        raise ConfigError(f"history has shape {history.shape}; it must be [steps, layers, experts], none of them 0")
    if history.dtype.kind == "f" and not np.isfinite(history).all():
        raise ConfigError("history holds a count that is not finite; counts must be numbers >= 0")
    if history.dtype.kind != "u" and history.min() < 0:
        raise ConfigError(f"history holds the count {history.min()}; counts must be >= 0")
    if history.dtype.kind == "f" and float(history.max()) > MOST_COUNT:
        raise ConfigError(f"history holds the count {history.max()}; counts may be at most {MOST_COUNT:g}")
    if history.dtype.isnative:
        return history
    native: NDArray[Any] = history.astype(history.dtype.newbyteorder("="))
    return native


def layer_counts(history: History, layer: int) -> NDArray[np.float64]:
    """[steps, experts] counts of one layer, contiguous, for arithmetic."""
    return np.ascontiguousarray(history[:, layer], np.float64)
