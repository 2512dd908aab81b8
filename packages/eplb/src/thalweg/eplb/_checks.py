"""What an argument must be before anything is computed with it."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import ConfigError, shown


def require_integer(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise ConfigError unless the value is an integer of Python or numpy, and no bool, within the limits."""
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if is_integer and value >= least and (most is None or value <= most):
        return
    limits = f"of at least {least}" if most is None else f"in {least}..{most}"
    raise ConfigError(f"{name} is {shown(value)}; it must be an integer {limits}")


def require_number(name: str, value: Any, least: float, below: float) -> None:
    """Raise ConfigError unless the value is a real number of Python or numpy, and no bool, in [least, below)."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not (is_number and least <= value < below):
        raise ConfigError(f"{name} is {shown(value)}; it must be a number of at least {least} and below {below}")


def require_integers(name: str, values: NDArray[Any]) -> None:
    """Raise ConfigError unless the array has integers that are not negative."""
    if values.dtype.kind not in "iu":
        raise ConfigError(f"{name} is {values.dtype}; it must have integers >= 0")
    if values.size and values.min() < 0:
        raise ConfigError(f"{name} holds {values.min()}; it must have integers >= 0")


def require_int32(name: str, values: NDArray[Any]) -> None:
    """Raise ConfigError unless the array has integers from 0 to the largest of 32 bits."""
    require_integers(name, values)
    most = np.iinfo(np.int32).max
    if values.size and values.max() > most:
        raise ConfigError(f"{name} holds {values.max()}; it may have at most {most}")
