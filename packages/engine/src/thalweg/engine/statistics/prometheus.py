"""Prometheus metrics of one engine, in a registry of its own. Needs the extra `thalweg-engine[metrics]`.

Names follow those of vLLM with the prefix `thalweg:`, so that dashboards carry over. Serving them over HTTP is the
caller's: `prometheus_client.start_http_server(port, registry=metrics.registry)`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from thalweg.engine.statistics.figures import Capacity
from thalweg.engine.statistics.record import StepRecord
from thalweg.engine.statistics.step_statistics import StepStatistics
from thalweg.interfaces import ConfigError, RequestOutput, StepKind

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge

    from thalweg.engine.statistics.batch_histogram import BatchHistogram
except ImportError as error:
    raise ConfigError(
        "metrics is True; it needs the package prometheus_client: pip install 'thalweg-engine[metrics]'"
    ) from error

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5)
_TOKENS = (1, 4, 16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)
_VERIFY_LENGTHS = tuple(range(1, 17))


class _ByLabel(dict[str, Counter]):
    """The counters of one name by the value of a label, looked up once: that is slow in the client."""

    def __init__(self, make: Callable[[str], Counter]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, value: str) -> Counter:
        self[value] = counter = self._make(value)
        return counter


class EngineMetrics:
    """Counters, gauges and histograms that follow an engine's statistics."""

    def __init__(
        self,
        capacity: Capacity,
        *,
        model_name: str,
        rank: int = 0,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """registry: None makes one, so that engines of one process do not meet.

        model_name, rank: values of the labels `model_name` and `engine`. Raises ConfigError for a registry that holds
        the metrics of another engine.
        """
        self.registry = CollectorRegistry() if registry is None else registry
        self._capacity = capacity
        self._clock = clock
        self._last_token_s: dict[int, float] = {}
        """When a sequence last got a token, by id."""
        self._num_preempted = 0
        self._labels = {"model_name": model_name, "engine": str(rank)}
        try:
            self._make_gauges()
            self._make_counters()
            self._make_histograms()
        except ValueError as error:
            raise ConfigError(
                f"the registry holds these metrics already; give each engine its own ({error})"
            ) from error

    def follow(self, statistics: StepStatistics) -> None:
        """Take every step and every final output from now on."""
        statistics.on_step(self.take_step)
        statistics.on_finish(self.take_finished)

    def take_step(self, record: StepRecord) -> None:
        """Count one step."""
        plan, stats, capacity = record.plan, record.plan.stats, self._capacity
        kind = plan.kind.name.lower() if plan.sequence_ids.size else "idle"
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting + stats.num_prompted)
        self._chunked.set(stats.num_chunked)
        self._kv_usage.set(1 - stats.num_free_blocks / (capacity.num_blocks - 1))
        self._state_usage.set(1 - stats.num_free_state_slots / (capacity.num_state_slots - 1))
        self._steps[kind].inc()
        self._step_seconds[kind].inc(record.step_ms / 1000)
        self._preemptions.inc(stats.num_preempted - self._num_preempted)
        self._num_preempted = stats.num_preempted
        self._output_tokens.inc(record.outcome.token_ids.size)
        self._time_to_first_token.observe(np.array(record.first_token_ms) / 1000)
        if plan.kind is StepKind.PREFILL:
            self._prompt_tokens.inc(int(plan.query_lengths.sum()))
        else:
            self._take_drafts(record)
        self._take_token_times(record)

    def take_finished(self, outputs: Sequence[RequestOutput]) -> None:
        """Count requests that ended."""
        for output in outputs:
            reason = output.outputs[0].finish_reason if output.outputs else None
            self._finished[reason or "error"].inc()
        metrics = [output.metrics for output in outputs]
        times = [each.total_time_s for each in metrics if each.total_time_s is not None]
        self._request_time.observe(np.array(times))
        self._request_prompt_tokens.observe(np.array([each.num_prompt_tokens for each in metrics]))
        self._request_output_tokens.observe(np.array([each.num_output_tokens for each in metrics]))

    def _take_drafts(self, record: StepRecord) -> None:
        verified = record.outcome.num_verified
        rows = verified > 0
        self._verify_length.observe(verified[rows])
        drafts, accepted = verified[rows] - 1, record.outcome.num_accepted[rows] - 1
        if not drafts.any():
            return
        self._drafts.inc(int((drafts > 0).sum()))
        self._draft_tokens.inc(int(drafts.sum()))
        self._accepted_tokens.inc(int(accepted.sum()))
        for position in range(int(drafts.max())):
            self._accepted_by_position[str(position)].inc(int((accepted > position).sum()))

    def _take_token_times(self, record: StepRecord) -> None:
        """Time between the tokens of a sequence; tokens of one step share the time since the step before."""
        now, plan, last = self._clock(), record.plan, self._last_token_s
        counts = np.diff(record.outcome.token_offsets)
        ids, counts = plan.sequence_ids[counts > 0].tolist(), counts[counts > 0]
        gaps = (now - np.array([last.get(sequence_id, np.nan) for sequence_id in ids])) / counts
        is_known = ~np.isnan(gaps)
        self._inter_token_time.observe(np.repeat(gaps[is_known], counts[is_known]))
        last.update(dict.fromkeys(ids, now))
        for ids in (plan.finished_ids, plan.dropped_ids, record.outcome.completed_ids):
            for sequence_id in ids.tolist():
                last.pop(sequence_id, None)

    def _make_gauges(self) -> None:
        self._running = self._gauge("num_requests_running", "Requests in the batch")
        self._waiting = self._gauge("num_requests_waiting", "Requests without a place in the batch")
        self._chunked = self._gauge("num_requests_chunked", "Waiting requests with a partly computed prompt")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "Used part of the cache blocks, from 0 to 1")
        self._state_usage = self._gauge("state_slot_usage_perc", "Used part of the state slots, from 0 to 1")

    def _make_counters(self) -> None:
        self._preemptions = self._counter("num_preemptions", "Preemptions")
        self._prompt_tokens = self._counter("prompt_tokens", "Prefilled tokens")
        self._output_tokens = self._counter("generation_tokens", "Generated tokens")
        self._drafts = self._counter("spec_decode_num_drafts", "Rows verified with drafts")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "Verified drafts")
        self._accepted_tokens = self._counter("spec_decode_num_accepted_tokens", "Accepted drafts")
        self._accepted_by_position = self._counters(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted drafts by position from 0", "position"
        )
        self._steps = self._counters("steps", "Steps by kind", "kind")
        self._step_seconds = self._counters("step_seconds", "Time of steps by kind", "kind")
        self._finished = self._counters("request_success", "Requests that ended, by reason", "finished_reason")

    def _make_histograms(self) -> None:
        self._time_to_first_token = self._histogram("time_to_first_token_seconds", "From arrival", _SECONDS)
        self._inter_token_time = self._histogram("inter_token_latency_seconds", "Between tokens", _SHORT_SECONDS)
        self._request_time = self._histogram("e2e_request_latency_seconds", "From arrival to the end", _SECONDS)
        self._verify_length = self._histogram("verify_length", "Query tokens of a decode row", _VERIFY_LENGTHS)
        self._request_prompt_tokens = self._histogram("request_prompt_tokens", "Prompt length", _TOKENS)
        self._request_output_tokens = self._histogram("request_generation_tokens", "Output length", _TOKENS)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"thalweg:{name}", text, list(self._labels), registry=self.registry).labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"thalweg:{name}", text, list(self._labels), registry=self.registry)
        return counter.labels(**self._labels)

    def _counters(self, name: str, text: str, label: str) -> _ByLabel:
        counter = Counter(f"thalweg:{name}", text, [*self._labels, label], registry=self.registry)
        return _ByLabel(lambda value: counter.labels(**self._labels, **{label: value}))

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> BatchHistogram:
        histogram = BatchHistogram(f"thalweg:{name}", text, bounds, self._labels)
        self.registry.register(histogram)
        return histogram
