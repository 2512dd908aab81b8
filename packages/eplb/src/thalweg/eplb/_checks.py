"""What an argument must be before anything is computed with it."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import ConfigError, shown

MOST_LOAD = 1e100
"""Up to which loads, and their sums over ranks, steps and layers, are finite in float64."""


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


def described(value: Any) -> str:
    """Type and shape of an array, anything else as it is shown: for messages."""
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else shown(value)


def require_array(name: str, values: Any, num_dimensions: int, accepted: str) -> None:
    """Raise ConfigError unless this is an array of integers with so many dimensions; `accepted` names these."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu" or values.ndim != num_dimensions:
        raise ConfigError(f"{name} is {described(values)}; it must be an array of integers, {accepted}")


def require_within(name: str, values: NDArray[Any], least: int, most: int) -> None:
    """Raise ConfigError unless the integers of the array are in least..most."""
    if values.size and (values.min() < least or values.max() > most):
        raise ConfigError(f"{name} holds {values.min()} to {values.max()}; it must have integers in {least}..{most}")


def require_loads(name: str, loads: Any) -> None:
    """Raise ConfigError unless this is an array of numbers in 0..MOST_LOAD."""
    if not isinstance(loads, np.ndarray) or loads.dtype.kind not in "iuf":
        raise ConfigError(f"{name} is {described(loads)}; it must be an array of integers or floats")
    if loads.size and not (loads.min() >= 0 and float(loads.max()) <= MOST_LOAD):
        found = f"{loads.min()} to {loads.max()}"
        raise ConfigError(f"{name} holds {found}; it must have finite numbers in 0..{MOST_LOAD:g}")


def require_integers(name: str, values: Any) -> None:
    """Raise ConfigError unless this is an array of integers that are not negative."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        found = values.dtype if isinstance(values, np.ndarray) else shown(values)
        raise ConfigError(f"{name} is {found}; it must be an array that has integers >= 0")
    if values.size and values.min() < 0:
        raise ConfigError(f"{name} holds {values.min()}; it must have integers >= 0")


def require_int32(name: str, values: Any) -> None:
    """Raise ConfigError unless this is an array that has integers from 0 to the largest of 32 bits."""
    require_integers(name, values)
    most = np.iinfo(np.int32).max
    if values.size and values.max() > most:
        raise ConfigError(f"{name} holds {values.max()}; it may have at most {most}")
