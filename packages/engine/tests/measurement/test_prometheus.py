import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from thalweg.engine.statistics import Capacity, StepRecord, StepStatistics
from thalweg.engine.statistics.batch_histogram import BatchHistogram
from thalweg.engine.statistics.prometheus import EngineMetrics
from thalweg.engine.statistics.step_counter import StepCounter
from thalweg.interfaces import CompletionOutput, ConfigError, GrammarCounts, RequestMetrics, RequestOutput, StepKind

MakeRecord = Callable[..., StepRecord]
CAPACITY = Capacity(max_num_seqs=4, num_blocks=11, num_state_slots=6)
LABELS = {"model_name": "m", "engine": "2"}


class Metrics(EngineMetrics):
    """With a clock that a test sets, and a short way to read a sample."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.now_s = 0.0
        super().__init__(CAPACITY, model_name="m", rank=2, registry=registry, clock=lambda: self.now_s)

    def __getitem__(self, sample: str) -> float | None:
        return self.value(sample)

    def value(self, sample: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"thalweg:{sample}", LABELS | labels)


def final_output(reason: str | None, **metrics: Any) -> RequestOutput:
    given = {"num_prompt_tokens": 1, "num_output_tokens": 1, "time_to_first_token_s": None, "total_time_s": 1.0}
    completion = CompletionOutput(0, "", (), None, reason, None)
    return RequestOutput(
        request_id="a",
        prompt=None,
        prompt_token_ids=(),
        prompt_logprobs=None,
        outputs=() if reason is None else (completion,),
        finished=True,
        error=None,
        metrics=RequestMetrics(**(given | {"num_preemptions": 0} | metrics)),
    )


def test_steps_move_counters_and_gauges(make_record: MakeRecord) -> None:
    metrics = Metrics()
    stats = {"num_running": 3, "num_waiting": 2, "num_prompted": 1, "num_chunked": 1, "num_preempted": 2}
    stats |= {"num_free_blocks": 5, "num_free_state_slots": 4}
    metrics.take_step(make_record(0, StepKind.PREFILL, query_lengths=[40, 2], num_tokens=[0, 1], step_ms=500))
    metrics.take_step(make_record(1, query_lengths=[1, 1], stats=stats, step_ms=250))
    metrics.take_step(make_record(2, query_lengths=[], stats=stats | {"num_preempted": 5}, step_ms=1))
    assert metrics["num_requests_running"] == 3
    assert metrics["num_requests_waiting"] == 3
    assert metrics["num_requests_chunked"] == 1
    assert metrics["kv_cache_usage_perc"] == 0.5
    assert metrics["state_slot_usage_perc"] == pytest.approx(0.2)
    assert metrics["num_preemptions_total"] == 5
    assert metrics["prompt_tokens_total"] == 42
    assert metrics["generation_tokens_total"] == 3
    assert [metrics.value("steps_total", kind=kind) for kind in ("prefill", "decode", "idle")] == [1, 1, 1]
    assert metrics.value("step_seconds_total", kind="prefill") == 0.5


def test_drafts_are_counted_in_total_and_by_position(make_record: MakeRecord) -> None:
    metrics = Metrics()
    metrics.take_step(make_record(0, query_lengths=[3, 3, 1, 2], accepted=[3, 2, 1, 1]))
    metrics.take_step(make_record(1, query_lengths=[1], accepted=[1]))
    assert metrics["spec_decode_num_drafts_total"] == 3
    assert metrics["spec_decode_num_draft_tokens_total"] == 5
    assert metrics["spec_decode_num_accepted_tokens_total"] == 3
    assert metrics.value("spec_decode_num_accepted_tokens_per_pos_total", position="0") == 2
    assert metrics.value("spec_decode_num_accepted_tokens_per_pos_total", position="1") == 1
    assert metrics.value("spec_decode_num_accepted_tokens_per_pos_total", position="2") is None
    assert metrics.value("verify_length_bucket", le="1.0") == 2
    assert metrics.value("verify_length_bucket", le="3.0") == 5
    assert metrics["verify_length_sum"] == 10


def test_confidences_and_faults_of_the_drafter_are_counted(make_record: MakeRecord) -> None:
    metrics = Metrics()
    metrics.take_step(make_record(0, query_lengths=[3], confidences=[[0.5, 0.25]], accept_probs=[[1.0, 0.25]]))
    metrics.take_step(make_record(1, draft_faults=(2, 3)))
    assert metrics["spec_decode_confidence_error_total"] == 0.5
    assert metrics["spec_decode_num_confidences_total"] == 2
    assert metrics.value("spec_decode_draft_faults_total", fault="illegal_id") == 2
    assert metrics.value("spec_decode_draft_faults_total", fault="bad_confidence") == 3


def test_the_time_between_tokens_is_per_sequence_and_per_token(make_record: MakeRecord) -> None:
    metrics = Metrics()
    steps = [
        make_record(0, StepKind.PREFILL, query_lengths=[5, 5], num_tokens=[1, 0], sequence_ids=[7, 8]),
        make_record(1, query_lengths=[4], accepted=[4], sequence_ids=[7]),  # 4 tokens in 2 s
        make_record(2, StepKind.PREFILL, query_lengths=[5], num_tokens=[1], sequence_ids=[8]),
        make_record(3, query_lengths=[1, 1], sequence_ids=[7, 8]),  # 4 s after the last, and 2 s
    ]
    for step, record in enumerate(steps):
        metrics.now_s = 2.0 * step
        metrics.take_step(record)
    assert metrics["inter_token_latency_seconds_count"] == 6
    assert metrics["inter_token_latency_seconds_sum"] == 2 + 4 + 2
    assert metrics.value("inter_token_latency_seconds_bucket", le="0.5") == 4


def test_a_sequence_that_left_is_forgotten(make_record: MakeRecord) -> None:
    metrics = Metrics()
    metrics.take_step(make_record(0, query_lengths=[1, 1], sequence_ids=[7, 8]))
    metrics.take_step(make_record(1, query_lengths=[1], sequence_ids=[8], finished_ids=[7]))
    assert set(metrics._last_token_s) == {8}


def test_ends_of_requests_are_counted_by_reason(make_record: MakeRecord) -> None:
    metrics = Metrics()
    statistics = StepStatistics(CAPACITY, interval_steps=0)
    metrics.follow(statistics)
    statistics.record(make_record(0, first_token_ms=(20.0, 2000.0)))
    statistics.record_finished([final_output("stop", total_time_s=3.0, num_prompt_tokens=100), final_output("stop")])
    statistics.record_finished([final_output("abort", total_time_s=None), final_output(None)])
    reasons = {reason: metrics.value("request_success_total", finished_reason=reason) for reason in ("stop", "abort")}
    assert reasons == {"stop": 2, "abort": 1}
    assert metrics.value("request_success_total", finished_reason="error") == 1
    assert metrics["e2e_request_latency_seconds_count"] == 3
    assert metrics["e2e_request_latency_seconds_sum"] == 5.0
    assert metrics["request_prompt_tokens_sum"] == 103
    assert metrics["request_generation_tokens_count"] == 4
    assert metrics["time_to_first_token_seconds_sum"] == pytest.approx(2.02)
    assert metrics.value("time_to_first_token_seconds_bucket", le="0.025") == 1


def test_outputs_of_one_prompt_count_each_for_itself(make_record: MakeRecord) -> None:
    metrics = Metrics()
    metrics.take_step(make_record(0, StepKind.PREFILL, query_lengths=[5], num_tokens=[1], num_output_tokens=3))
    assert metrics["generation_tokens_total"] == 3
    ended = final_output("stop")
    metrics.take_finished([replace(ended, outputs=(*ended.outputs, CompletionOutput(1, "", (), None, "length", None)))])
    for reason in ("stop", "length"):
        assert metrics.value("request_success_total", finished_reason=reason) == 1
    assert metrics["e2e_request_latency_seconds_count"] == 1


def test_two_engines_of_one_process_do_not_meet(make_record: MakeRecord) -> None:
    one, two = Metrics(), Metrics()
    one.take_step(make_record(0))
    assert (one["generation_tokens_total"], two["generation_tokens_total"]) == (1, 0)


def test_a_registry_can_be_handed_in_but_not_shared() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    assert metrics.registry is registry
    with pytest.raises(ConfigError, match="the registry holds these metrics already; give each engine its own"):
        Metrics(registry)


def test_a_scrape_reads_as_prometheus_text(make_record: MakeRecord) -> None:
    metrics = Metrics()
    metrics.take_step(make_record(0, query_lengths=[2]))
    text = generate_latest(metrics.registry).decode()
    assert "# TYPE thalweg:verify_length histogram\n" in text
    assert 'thalweg:verify_length_bucket{engine="2",le="2.0",model_name="m"} 1.0\n' in text
    assert 'thalweg:generation_tokens_total{engine="2",model_name="m"} 1.0\n' in text


def test_a_value_on_a_bound_belongs_to_its_bucket() -> None:
    registry = CollectorRegistry()
    histogram = BatchHistogram("lengths", "", (1, 2.5, 4), {"a": "b"})
    registry.register(histogram)
    histogram.observe(np.array([0, 1, 2.5, 3, 9]))
    histogram.observe(np.zeros(0))
    buckets = [
        registry.get_sample_value("lengths_bucket", {"a": "b", "le": bound}) for bound in ("1.0", "2.5", "4.0", "+Inf")
    ]
    assert buckets == [2, 3, 4, 5]
    assert registry.get_sample_value("lengths_sum", {"a": "b"}) == 15.5


def test_a_value_may_count_several_times() -> None:
    registry = CollectorRegistry()
    histogram = BatchHistogram("gaps", "", (1, 2), {"a": "b"})
    registry.register(histogram)
    histogram.observe(np.array([0.5, 2.0]), np.array([4, 1], np.int32))
    assert registry.get_sample_value("gaps_bucket", {"a": "b", "le": "1.0"}) == 4
    assert registry.get_sample_value("gaps_count", {"a": "b"}) == 5
    assert registry.get_sample_value("gaps_sum", {"a": "b"}) == 4.0


def test_a_counter_adds_up_by_the_value_of_its_label() -> None:
    registry = CollectorRegistry()
    plain, by_kind = StepCounter("plain", "", {"a": "b"}), StepCounter("by_kind", "", {"a": "b"}, "kind")
    for counter in (plain, by_kind):
        registry.register(counter)
    assert registry.get_sample_value("plain_total", {"a": "b"}) == 0
    assert registry.get_sample_value("by_kind_total", {"a": "b", "kind": "x"}) is None
    plain.add(2)
    plain.add(0.5)
    by_kind.add(3, "x")
    assert registry.get_sample_value("plain_total", {"a": "b"}) == 2.5
    assert registry.get_sample_value("by_kind_total", {"a": "b", "kind": "x"}) == 3
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(StepCounter("plain", "", {"a": "b"}))


def test_grammars_are_read_off_their_compiler_at_a_scrape(make_record: MakeRecord) -> None:
    metrics, statistics = Metrics(), StepStatistics()
    metrics.follow(statistics)
    assert metrics.value("grammars_total", result="compiled") == 0
    counts = GrammarCounts(
        num_submitted=20,
        num_compiled=7,
        num_cache_hits=5,
        num_failed=4,
        num_timeouts=3,
        num_cancelled=2,
        num_workers_replaced=6,
        compile_s=1.5,
        cache_bytes=1000,
    )
    statistics.watch_grammars(lambda: counts)
    results = {"compiled": 7, "cached": 5, "failed": 1, "timeout": 3, "cancelled": 2}
    assert {result: metrics.value("grammars_total", result=result) for result in results} == results
    assert metrics["grammar_compile_seconds_total"] == 1.5
    assert metrics["grammar_workers_replaced_total"] == 6
    assert metrics["grammar_cache_bytes"] == 1000
    statistics.record(make_record(0, mask_ms=250))
    statistics.record(make_record(1))
    assert metrics["grammar_mask_seconds_total"] == 0.25


def test_before_the_first_step_everything_is_zero() -> None:
    metrics = Metrics()
    assert metrics["num_requests_running"] == metrics["kv_cache_usage_perc"] == metrics["generation_tokens_total"] == 0


@pytest.fixture
def without_prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module as it is where the extra is not installed."""
    missing: dict[str, ModuleType | None] = {name: None for name in sys.modules if name.startswith("prometheus_client")}
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("prometheus", "batch_histogram"):
        monkeypatch.delitem(sys.modules, f"thalweg.engine.statistics.{name}")


@pytest.mark.usefixtures("without_prometheus")
def test_without_the_extra_the_error_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'thalweg-engine\[metrics\]'"):
        import thalweg.engine.statistics.prometheus  # noqa: F401
