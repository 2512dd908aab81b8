"""The whole loop on two ranks: counts of all ranks become a plan, and the plan becomes where experts are."""

from __future__ import annotations

import numpy as np
import pytest
from eplb_ranks.launch import Launcher
from eplb_ranks.loop import routed, run_balanced

pytestmark = pytest.mark.distributed


def test_ranks_that_count_plan_and_move_end_balanced(launcher: Launcher) -> None:
    results = launcher.results(run_balanced, 2)
    first = results[0]
    for result in results:
        assert result["fits"]
        assert np.array_equal(result["slots"], first["slots"])
        assert len(result["sums"]) >= 1
        assert np.array_equal(result["sums"][0], np.stack([routed(step) for step in range(6)])), "no token is lost"
    assert first["before"] > 1.15
    assert first["after"] < 1.08
