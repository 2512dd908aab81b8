"""A Prometheus histogram that takes an array at once: a step brings a thousand tokens, and calls would add up."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class BatchHistogram(Collector):
    """Counts values by bucket; a value belongs to the first bound that is not below it."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float], labels: Mapping[str, str]) -> None:
        """bounds: ascending; infinity is added. labels: the one set of label values."""
        self._name = name
        self._documentation = documentation
        self._labels = dict(labels)
        self._bounds = np.array(bounds, np.float64)
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, values: NDArray[Any], times: NDArray[Any] | None = None) -> None:
        """Count these values, [n] of any numeric dtype; times: int [n], how often each, once if not given."""
        if not values.size:
            return
        places = self._bounds.searchsorted(values)
        counts = np.bincount(places, times, self._counts.size).astype(np.int64)
        total = float(values.sum() if times is None else values @ times)
        with self._lock:
            self._counts += counts
            self._sum += total

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What a scrape sees."""
        with self._lock:
            cumulative, total = self._counts.cumsum().tolist(), self._sum
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        family = HistogramMetricFamily(self._name, self._documentation, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), list(zip(bounds, cumulative, strict=True)), total)
        yield family

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """The names, so that a registry notices a second histogram of the same one."""
        yield HistogramMetricFamily(self._name, self._documentation, labels=list(self._labels))
