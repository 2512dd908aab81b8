"""Prometheus metrics of one engine, in a registry of its own. Needs the extra `thalweg-engine[metrics]`.

Names follow those of vLLM with the prefix `thalweg:`, so that dashboards carry over. Serving them over HTTP is the
caller's: `prometheus_client.start_http_server(port, registry=metrics.registry)`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import repeat

import numpy as np

from thalweg.engine.statistics.figures import Capacity
from thalweg.engine.statistics.record import StepRecord
from thalweg.engine.statistics.step_statistics import StepStatistics
from thalweg.interfaces import ConfigError, RequestOutput, StepKind, StepStats

try:
    from prometheus_client import CollectorRegistry, Gauge

    from thalweg.engine.statistics.batch_histogram import BatchHistogram
    from thalweg.engine.statistics.grammar_collector import GrammarCollector
    from thalweg.engine.statistics.step_counter import StepCounter
except ImportError as error:
    raise ConfigError(
        "metrics is True; it needs the package prometheus_client: pip install 'thalweg-engine[metrics]'"
    ) from error

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5)
_TOKENS = (1, 4, 16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)
_DRAFT_FAULTS = ("illegal_id", "bad_confidence")
_VERIFY_LENGTHS = tuple(range(1, 17))


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
        self._stats: StepStats | None = None
        """Of the newest plan; gauges are read off it at a scrape."""
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
        """Take every step and every final output from now on, and the totals of the compiler of grammars."""
        statistics.on_step(self.take_step)
        statistics.on_finish(self.take_finished)
        self.registry.register(GrammarCollector(self._labels, lambda: statistics.grammars))

    def take_step(self, record: StepRecord) -> None:
        """Count one step."""
        plan, self._stats = record.plan, record.plan.stats
        kind = plan.kind.name.lower() if plan.sequence_ids.size else "idle"
        self._steps.add(1, kind)
        self._step_seconds.add(record.step_ms / 1000, kind)
        self._mask_seconds.add(record.mask_ms / 1000)
        self._preemptions.add(plan.stats.num_preempted - self._num_preempted)
        self._num_preempted = plan.stats.num_preempted
        self._output_tokens.add(record.num_output_tokens)
        if record.first_token_ms:
            self._time_to_first_token.observe(np.array(record.first_token_ms) / 1000)
        if plan.kind is StepKind.PREFILL:
            self._prompt_tokens.add(int(plan.query_lengths.sum()))
        else:
            self._take_drafts(record)
        self._take_token_times(record)

    def take_finished(self, outputs: Sequence[RequestOutput]) -> None:
        """Count requests that ended, and their outputs."""
        for output in outputs:
            for reason in [completion.finish_reason for completion in output.outputs] or [None]:
                self._finished.add(1, reason or "error")
        metrics = [output.metrics for output in outputs]
        times = [each.total_time_s for each in metrics if each.total_time_s is not None]
        self._request_time.observe(np.array(times))
        self._request_prompt_tokens.observe(np.array([each.num_prompt_tokens for each in metrics]))
        self._request_output_tokens.observe(np.array([each.num_output_tokens for each in metrics]))

    def _take_drafts(self, record: StepRecord) -> None:
        rows = record.outcome.num_verified > 0
        verified, accepted = record.outcome.num_verified[rows], record.outcome.num_accepted[rows]
        self._verify_length.observe(verified)
        for fault, count in zip(_DRAFT_FAULTS, record.draft_faults, strict=True):
            self._draft_faults.add(count, fault)
        errors = record.confidence_errors
        self._confidence_errors.add(float(errors.sum()))
        self._confidences.add(errors.size)
        num_drafts = int(verified.sum()) - verified.size
        if not num_drafts:
            return
        self._drafts.add(int(np.count_nonzero(verified > 1)))
        self._draft_tokens.add(num_drafts)
        by_length = np.bincount(accepted, minlength=int(verified.max()) + 1)
        reaching = by_length[::-1].cumsum()[::-1][2:].tolist()  # rows whose first, second, ... draft was accepted
        self._accepted_tokens.add(sum(reaching))
        for position, num_rows in enumerate(reaching):
            self._accepted_by_position.add(num_rows, str(position))

    def _take_token_times(self, record: StepRecord) -> None:
        """Time between the tokens of a sequence; tokens of one step share the time since the step before."""
        now, plan, last = self._clock(), record.plan, self._last_token_s
        offsets = record.outcome.token_offsets
        counts = offsets[1:] - offsets[:-1]
        rows = counts > 0
        ids, counts = plan.sequence_ids[rows].tolist(), counts[rows]
        since = np.fromiter(map(last.get, ids, repeat(np.nan)), np.float64, len(ids))
        is_known = ~np.isnan(since)
        counts = counts[is_known]
        self._inter_token_time.observe((now - since[is_known]) / counts, counts)
        last.update(zip(ids, repeat(now)))
        for ids in (plan.finished_ids, plan.dropped_ids, record.outcome.completed_ids):
            for sequence_id in ids.tolist():
                last.pop(sequence_id, None)

    def _make_gauges(self) -> None:
        capacity = self._capacity
        self._gauge("num_requests_running", "Requests in the batch", lambda stats: stats.num_running)
        self._gauge(
            "num_requests_waiting",
            "Requests without a place in the batch",
            lambda stats: stats.num_waiting + stats.num_prompted,
        )
        self._gauge(
            "num_requests_chunked", "Waiting requests with a partly computed prompt", lambda stats: stats.num_chunked
        )
        self._gauge("kv_cache_usage_perc", "Used part of the cache blocks, from 0 to 1", capacity.kv_usage)
        self._gauge("state_slot_usage_perc", "Used part of the state slots, from 0 to 1", capacity.state_usage)

    def _make_counters(self) -> None:
        self._preemptions = self._counter("num_preemptions", "Preemptions")
        self._prompt_tokens = self._counter("prompt_tokens", "Prefilled tokens")
        self._output_tokens = self._counter("generation_tokens", "Generated tokens")
        self._drafts = self._counter("spec_decode_num_drafts", "Rows verified with drafts")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "Verified drafts")
        self._accepted_tokens = self._counter("spec_decode_num_accepted_tokens", "Accepted drafts")
        self._accepted_by_position = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted drafts by position from 0", "position"
        )
        self._confidence_errors = self._counter(
            "spec_decode_confidence_error", "Distance between confidence and probability of acceptance, over drafts"
        )
        self._confidences = self._counter("spec_decode_num_confidences", "Verified drafts of known confidence")
        self._draft_faults = self._counter("spec_decode_draft_faults", "Wrong proposals of the drafter", "fault")
        self._steps = self._counter("steps", "Steps by kind", "kind")
        self._step_seconds = self._counter("step_seconds", "Time of steps by kind", "kind")
        self._mask_seconds = self._counter("grammar_mask_seconds", "Time of the host filling masks of grammars")
        self._finished = self._counter("request_success", "Outputs that ended, by reason", "finished_reason")

    def _make_histograms(self) -> None:
        self._time_to_first_token = self._histogram("time_to_first_token_seconds", "From arrival", _SECONDS)
        self._inter_token_time = self._histogram("inter_token_latency_seconds", "Between tokens", _SHORT_SECONDS)
        self._request_time = self._histogram("e2e_request_latency_seconds", "From arrival to the end", _SECONDS)
        self._verify_length = self._histogram("verify_length", "Query tokens of a decode row", _VERIFY_LENGTHS)
        self._request_prompt_tokens = self._histogram("request_prompt_tokens", "Prompt length", _TOKENS)
        self._request_output_tokens = self._histogram("request_generation_tokens", "Output length", _TOKENS)

    def _gauge(self, name: str, text: str, read: Callable[[StepStats], float]) -> None:
        gauge = Gauge(f"thalweg:{name}", text, list(self._labels), registry=self.registry).labels(**self._labels)
        gauge.set_function(lambda: 0.0 if self._stats is None else read(self._stats))

    def _counter(self, name: str, text: str, by: str | None = None) -> StepCounter:
        counter = StepCounter(f"thalweg:{name}", text, self._labels, by)
        self.registry.register(counter)
        return counter

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> BatchHistogram:
        histogram = BatchHistogram(f"thalweg:{name}", text, bounds, self._labels)
        self.registry.register(histogram)
        return histogram
