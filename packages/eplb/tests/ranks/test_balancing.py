"""The whole loop on two ranks: counts of all ranks become a plan, and the plan becomes where experts are."""

from __future__ import annotations

import numpy as np
import pytest
from eplb_ranks.launch import Launcher
from eplb_ranks.loop import LAYERS_AT_A_TIME, routed, run_balanced
from eplb_ranks.moves import LAYERS

pytestmark = pytest.mark.distributed


def test_ranks_that_count_plan_and_move_end_balanced(launcher: Launcher) -> None:
    results = launcher.results(run_balanced, 2)
    first = results[0]
    for result in results:
        assert result["fits"]
        assert np.array_equal(result["slots"], first["slots"])
        assert np.array_equal(result["sums"][0], np.stack([routed(step) for step in range(6)])), "no token is lost"
    assert first["before"] > 1.15
    assert first["after"] < 1.08
    report = first["report"]
    ages = report.age_steps.tolist()
    assert 0 < ages.count(54) <= LAYERS_AT_A_TIME < LAYERS, "not all layers move after the first six steps"
    assert set(ages) <= {54, 30, 6}
    assert (report.moved_bytes > 0).all()
    assert (report.planned_imbalance < first["before"]).all()
    assert 1 < report.live_imbalance < first["before"]
