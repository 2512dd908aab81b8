import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from thalweg.engine.stats import StepStatistics, StepTotals
from thalweg.interfaces import StepKind, StepStats


def make_plan(step: int, kind: StepKind, query_lengths: list[int]) -> Any:
    stats = StepStats(0, 0, 0, 0.0, 0.0, 3, 2, 1, 4, 5, 6, 7)
    lengths = np.array(query_lengths, np.int32)
    return SimpleNamespace(step=step, kind=kind, sequence_ids=lengths, query_lengths=lengths, stats=stats)


def test_steps_are_counted_by_kind() -> None:
    statistics = StepStatistics()
    statistics.record(make_plan(0, StepKind.PREFILL, [5, 6]), num_output_tokens=1, forward_s=3.0, step_s=4.0)
    statistics.record(make_plan(1, StepKind.DECODE, [1, 1]), num_output_tokens=2, forward_s=1.5, step_s=2.0)
    statistics.record(make_plan(2, StepKind.DECODE, []), num_output_tokens=0, forward_s=0.0, step_s=0.0)
    assert statistics.totals == StepTotals(1, 1, 1, 11, 3, 4.5, 6.0)
    assert statistics.totals.share_outside_forward == 0.25
    assert StepTotals().share_outside_forward == 0.0


def test_a_copy_is_a_point_to_measure_from() -> None:
    statistics = StepStatistics()
    before = statistics.totals.copy()
    statistics.record(make_plan(0, StepKind.DECODE, [1]), num_output_tokens=1, forward_s=1.0, step_s=1.0)
    assert before == StepTotals()
    assert statistics.totals.minus(before).num_decode_steps == 1


def test_one_line_is_logged_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    clock: Iterator[float] = iter([0.0, 2.0, 6.0])
    statistics = StepStatistics(interval_steps=2, clock=lambda: next(clock))
    with caplog.at_level(logging.INFO, "thalweg.engine.stats"):
        for step in range(4):
            statistics.record(make_plan(step, StepKind.DECODE, [1]), num_output_tokens=4, forward_s=0.9, step_s=1.0)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("step 1: 1.0 steps/s, 0.0 prompt tokens/s, 4.0 output tokens/s, 3 running, 2 waiting")
    assert second.startswith("step 3: 0.5 steps/s, 0.0 prompt tokens/s, 2.0 output tokens/s")
    assert "5 blocks" not in first
    assert "6 blocks and 7 state slots free, 4 preempted, 5 aborted, 10 % outside" in first
