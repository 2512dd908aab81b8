"""A Prometheus counter of plain numbers: a step counts in a dozen places, and the client's calls would add up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class StepCounter(Collector):
    """Sums, by the value of one label or without one. One thread adds, any thread may scrape."""

    def __init__(self, name: str, documentation: str, labels: Mapping[str, str], by: str | None = None) -> None:
        """labels: the one set of label values. by: a further label, whose values come with the amounts."""
        self._name = name
        self._documentation = documentation
        self._label_names = [*labels] if by is None else [*labels, by]
        self._label_values = [*labels.values()]
        self._has_values = by is not None
        self._sums: dict[str, float] = {} if self._has_values else {"": 0}

    def add(self, amount: float, value: str = "") -> None:
        """Add an amount of at least 0; value: of the label `by`, where there is one."""
        self._sums[value] = self._sums.get(value, 0) + amount

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What a scrape sees."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._label_names)
        for value, total in self._sums.copy().items():  # of a copy: the engine may meet a new value meanwhile
            family.add_metric([*self._label_values, value] if self._has_values else self._label_values, total)
        yield family

    def describe(self) -> Iterator[CounterMetricFamily]:
        """The names, so that a registry notices a second counter of the same one."""
        yield CounterMetricFamily(self._name, self._documentation, labels=self._label_names)
