"""Rearranging while a small model runs on several ranks: no bit changes, and a lost rank breaks nothing."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from eplb_ranks.launch import Launcher
from eplb_ranks.moves import LAYERS, lose
from eplb_ranks.steps import run_while_moving

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("kind", "size", "splits"),
    [("peers", 2, False), ("peers", 3, True), ("peers", 4, False), ("shared", 3, False), ("stand-in", 2, True)],
)
def test_the_output_is_bit_equal_before_during_and_after(
    launcher: Launcher, kind: str, size: int, splits: bool
) -> None:
    results = launcher.results(run_while_moving, size, kind=kind, splits=splits)
    for result in results:
        assert all(result["is_equal"])
        assert all(result["is_fit"])
        assert result["switched"] == results[0]["switched"], "all ranks switch the same layers in the same step"
    steps = results[0]["switched"]
    assert [*itertools.chain(*steps)] == [*range(LAYERS)] * 2
    assert any(not layers for layers in steps), "some step ran while experts were moving"
    assert all(np.isfinite(result["output"]).all() for result in results)


@pytest.mark.parametrize(("kind", "failing_call"), [("peers", 0), ("peers", 1), ("shared", 1)])
def test_a_killed_rank_is_named_and_weights_stay_intact(launcher: Launcher, kind: str, failing_call: int) -> None:
    ended = launcher.run(lose, 3, kind=kind, failing_call=failing_call, how="killed")
    assert ended[1].exit_code == -9
    check_survivors([ended[0].result, ended[2].result], failing_call)


def test_a_rank_that_does_not_do_its_part_is_named(launcher: Launcher) -> None:
    ended = launcher.run(lose, 3, kind="peers", failing_call=0, how="silent")
    check_survivors([rank.result for rank in ended], failing_call=0)


def check_survivors(results: list[dict[str, Any]], failing_call: int) -> None:
    """Each names rank 1 and has switched no layer but those that were complete."""
    for result in results:
        assert "rank 1" in result["message"]
        assert result["ranks"] == (1,)
        assert result["later"] == [result["message"]] * 2, "it stays broken"
        assert result["switched"] in ([], [0][:failing_call])
