"""Prometheus metrics about grammars, read off the totals of their compiler at every scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from thalweg.interfaces import GrammarCounts


class GrammarCollector(Collector):
    """What became of the grammars of one engine. Compilers count on threads of their own, so steps count nothing."""

    def __init__(self, labels: Mapping[str, str], read: Callable[[], GrammarCounts]) -> None:
        """labels: the one set of label values."""
        self._labels = dict(labels)
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """What a scrape sees."""
        counts = self._read()
        yield self._results(
            {
                "compiled": counts.num_compiled,
                "cached": counts.num_cache_hits,
                "failed": counts.num_failed - counts.num_timeouts,
                "timeout": counts.num_timeouts,
                "cancelled": counts.num_cancelled,
            }
        )
        yield self._counter("grammar_compile_seconds", "From submission to result", counts.compile_s)
        yield self._counter("grammar_workers_replaced", "Compiling processes that ended", counts.num_workers_replaced)
        names, values = [*self._labels], [*self._labels.values()]
        cache = GaugeMetricFamily("thalweg:grammar_cache_bytes", "Compiled grammars that are kept", labels=names)
        cache.add_metric(values, counts.cache_bytes)
        yield cache

    def describe(self) -> Iterator[Metric]:
        """The names, so that a registry notices a second engine."""
        return self.collect()

    def _results(self, by_result: Mapping[str, int]) -> CounterMetricFamily:
        text = "Grammars of requests, by what became of them"
        family = CounterMetricFamily("thalweg:grammars", text, labels=[*self._labels, "result"])
        for result, count in by_result.items():
            family.add_metric([*self._labels.values(), result], count)
        return family

    def _counter(self, name: str, text: str, total: float) -> CounterMetricFamily:
        family = CounterMetricFamily(f"thalweg:{name}", text, labels=[*self._labels])
        family.add_metric([*self._labels.values()], total)
        return family
