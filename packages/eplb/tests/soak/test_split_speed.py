"""How long the split of a step takes at full size: 40 layers of 384 experts on 64 ranks."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "benchmarks"))

from eplb_traffic import history

from thalweg.eplb import StepSplit, plan

LIMIT_US = 5.0


@pytest.mark.parametrize("skew", [0.6, 1.0])
def test_a_layer_of_a_step_is_split_within_the_limit(skew: float) -> None:
    counts = history("topics", 2026, (150, 40, 384), 1296 * 64, skew).astype(np.int32)
    split = StepSplit(plan(counts[:100], 448, 64))
    times = []
    for tokens in counts[100:]:
        begin = time.thread_time_ns()
        split.split(tokens)
        times.append((time.thread_time_ns() - begin) / 1000 / 40)
    assert min(times) <= LIMIT_US
