"""The sizes at which steps are captured, and the measured time of a forward pass at each."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import index
from typing import Any

import numpy as np

from thalweg.dspark._checks import require_integer
from thalweg.interfaces import ConfigError, shown


def graph_sizes(max_size: int, interval: int = 8) -> list[int]:
    """Batch sizes worth a captured graph: powers of two below the interval, then its multiples, then max_size.

    Raises ConfigError for a size or an interval below 1.
    """
    for name, value in (("max_size", max_size), ("interval", interval)):
        require_integer(name, value, 1)
    interval = min(interval, max_size)
    powers = [1 << i for i in range((interval - 1).bit_length())]
    return [*powers, *range(interval, max_size, interval), max_size]


class StepTimeCurve:
    """Milliseconds of a forward pass by graph size. A batch runs the smallest graph that holds it."""

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        """points: (graph size in query tokens, milliseconds). Raises ConfigError naming the point that is wrong."""
        points = [_point(i, point) for i, point in enumerate(points)]
        if not points:
            raise ConfigError("points is empty; the curve needs at least one point (graph size, milliseconds)")
        for i, (size, time_ms) in enumerate(points):
            if size < 1:
                raise ConfigError(f"points[{i}] has size {size}; sizes are at least 1")
            if i and size <= points[i - 1][0]:
                raise ConfigError(f"points[{i}] has size {size} after {points[i - 1][0]}; sizes must ascend strictly")
            if not (math.isfinite(time_ms) and time_ms > 0):
                raise ConfigError(f"points[{i}] takes {time_ms} ms; times must be finite and above 0")
        self.sizes = [size for size, _ in points]
        """Strictly ascending."""
        self.times_ms = [float(time_ms) for _, time_ms in points]

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return iter(zip(self.sizes, self.times_ms, strict=True))

    @property
    def largest(self) -> int:
        return self.sizes[-1]

    def graph_size(self, num_tokens: int) -> int:
        """Size of the graph that a batch of that many query tokens, at most `largest`, runs."""
        return self.sizes[self._place(num_tokens)]

    def time_ms(self, num_tokens: int) -> float:
        """Time of that graph."""
        return self.times_ms[self._place(num_tokens)]

    def interpolated(self, sizes: Sequence[int]) -> StepTimeCurve:
        """The curve at other sizes, on straight lines between its points and flat before the first.

        For few measured points, or points read off a chart. Raises ConfigError for sizes beyond the last point.
        """
        for i, size in enumerate(sizes):
            if size > self.largest:
                raise ConfigError(f"sizes[{i}] is {size}; the curve ends at {self.largest}")
        return StepTimeCurve([(size, float(np.interp(size, self.sizes, self.times_ms))) for size in sizes])

    def _place(self, num_tokens: int) -> int:
        return bisect_left(self.sizes, num_tokens)


def _point(i: int, point: Any) -> tuple[int, float]:
    """A pair of a whole number and a number. Raises ConfigError naming the point that is none."""
    try:
        size, time_ms = point
        if isinstance(size, bool | np.bool_) or isinstance(time_ms, bool | str | np.bool_):
            raise TypeError
        return index(size), float(time_ms)
    except (TypeError, ValueError):
        raise ConfigError(f"points[{i}] is {shown(point)}; a pair (graph size, milliseconds) is needed") from None
