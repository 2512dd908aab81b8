"""The two estimators against recorded traces, and against a recomputation from scratch."""

import json
import statistics
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from thalweg.dspark import SamplerTimeEstimator, SlopeEstimator

TRACES = json.loads((Path(__file__).parent / "golden/runtime_estimators.json").read_text())


@pytest.mark.parametrize("trace", TRACES["short"], ids=lambda trace: f"{len(trace['residuals'])} samples")
def test_every_recorded_sample_leads_to_the_recorded_slope(trace: dict[str, list[float]]) -> None:
    estimator = SlopeEstimator()
    for size, excess_ms, slope in zip(trace["graph_sizes"], trace["residuals"], trace["slope_after_each"], strict=True):
        estimator.add(int(size), excess_ms)
        assert estimator.slope_ms == slope


@pytest.mark.parametrize("trace", TRACES["short"], ids=lambda trace: f"{len(trace['residuals'])} samples")
def test_every_recorded_sampler_time_leads_to_the_recorded_median(trace: dict[str, list[float]]) -> None:
    estimator = SamplerTimeEstimator()
    for sampler_ms, median in zip(trace["sampler_ms"], trace["sampler_median_after_each"], strict=True):
        estimator.add(7, sampler_ms)
        assert estimator.fallback_ms == median
        assert estimator.time_ms(7) == (median or 0.0)


def test_samples_older_than_the_window_are_forgotten() -> None:
    trace = TRACES["eviction"]
    expected = dict(zip(trace["checkpoints"], trace["slope_at"], strict=True))
    estimator = SlopeEstimator()
    for i, (size, excess_ms) in enumerate(zip(trace["graph_sizes"], trace["residuals"], strict=True)):
        estimator.add(size, excess_ms)
        if i in expected:
            assert estimator.slope_ms == expected.pop(i)
    assert not expected


def test_the_slope_is_the_median_of_each_sizes_median() -> None:
    """From scratch, at some points of a long run in which a size dies out."""
    generator = np.random.default_rng(3)
    estimator, samples = SlopeEstimator(), []
    for i in range(12_000):
        sizes = [8, 16, 24] if i < 4000 else [16, 24, 32]
        samples.append((int(generator.choice(sizes)), float(generator.integers(-9, 10))))
        estimator.add(*samples[-1])
        if i % 1000 == 999:
            window = samples[-5000:]
            counts = Counter(size for size, _ in window)
            medians = [
                statistics.median(excess for other, excess in window if other == size)
                for size, count in counts.items()
                if count >= 10
            ]
            assert estimator.slope_ms == statistics.median(medians)


def test_sampler_times_of_the_same_number_of_rows_come_first() -> None:
    estimator = SamplerTimeEstimator()
    assert estimator.time_ms(3) == 0.0
    for _ in range(4):
        estimator.add(3, 50.0)
    assert estimator.time_ms(3) == 0.0
    estimator.add(4, 50.0)
    assert estimator.time_ms(3) == 50.0
    for _ in range(5):
        estimator.add(4, 1.0)
    assert (estimator.time_ms(4), estimator.time_ms(3), estimator.fallback_ms) == (1.0, 1.0, 1.0)
    estimator.add(3, 50.0)
    assert (estimator.time_ms(4), estimator.time_ms(3)) == (1.0, 50.0)
