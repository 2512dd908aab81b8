"""What the curve does not know, learned from the steps that run: extra time per query token, and the sampler's time."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque

WINDOW = 5000
"""Samples of the slope that count, over all graph sizes."""
MIN_SLOPE_SAMPLES = 10
"""Samples of one graph size before its median counts."""
MAX_SAMPLER_SAMPLES = 9
MIN_SAMPLER_SAMPLES = 5


class SlopeEstimator:
    """Milliseconds per query token that steps take beyond the curve.

    The median of the medians of every graph size: each size has the same weight however often it runs, and no outlier
    moves the result.
    """

    def __init__(self) -> None:
        self._window: deque[tuple[int, float]] = deque()
        self._sorted_by_size: defaultdict[int, list[float]] = defaultdict(list)

    def add(self, graph_size: int, excess_ms: float) -> None:
        """excess_ms: (forward time - the curve's time) / graph size, of one step."""
        if len(self._window) == WINDOW:
            old_size, old_ms = self._window.popleft()
            samples = self._sorted_by_size[old_size]
            del samples[bisect_left(samples, old_ms)]
        self._window.append((graph_size, excess_ms))
        insort(self._sorted_by_size[graph_size], excess_ms)

    @property
    def slope_ms(self) -> float:
        """As measured, so possibly negative; 0 before any graph size has enough samples."""
        medians = [
            _median_of_sorted(samples) for samples in self._sorted_by_size.values() if len(samples) >= MIN_SLOPE_SAMPLES
        ]
        return _median_of_sorted(sorted(medians)) if medians else 0.0


class SamplerTimeEstimator:
    """Milliseconds of everything after the forward pass: the median of the last few steps."""

    def __init__(self) -> None:
        self._all: deque[float] = deque(maxlen=MAX_SAMPLER_SAMPLES)
        self._by_rows: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=MAX_SAMPLER_SAMPLES))

    def add(self, num_rows: int, sampler_ms: float) -> None:
        self._all.append(sampler_ms)
        self._by_rows[num_rows].append(sampler_ms)

    def time_ms(self, num_rows: int) -> float:
        """Of steps with exactly that many rows; else of all steps; 0 while too few were seen."""
        same_rows = _median_of_last(self._by_rows.get(num_rows, ()))
        if same_rows is not None:
            return same_rows
        return self.fallback_ms or 0.0

    @property
    def fallback_ms(self) -> float | None:
        """Of all steps; None while too few were seen."""
        return _median_of_last(self._all)


def _median_of_last(samples: deque[float] | tuple[()]) -> float | None:
    return _median_of_sorted(sorted(samples)) if len(samples) >= MIN_SAMPLER_SAMPLES else None


def _median_of_sorted(samples: list[float]) -> float:
    middle = len(samples) // 2
    return samples[middle] if len(samples) % 2 else (samples[middle - 1] + samples[middle]) / 2
