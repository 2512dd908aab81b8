"""Graph sizes, the step-time curve, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from thalweg.dspark import StepTimeCurve, ThroughputBudget, graph_sizes
from thalweg.interfaces import ConfigError

TABLES = json.loads((Path(__file__).parent / "golden/tables.json").read_text())["graph_sizes"]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table['max_size']} by {table['interval']}")
def test_graph_sizes_are_the_recorded_ones(table: dict[str, Any]) -> None:
    assert graph_sizes(table["max_size"], table["interval"]) == table["sizes"]


@pytest.mark.parametrize("interval", [1, 2, 3, 7, 8, 9, 64])
def test_graph_sizes_ascend_strictly_to_the_largest(interval: int) -> None:
    for max_size in range(1, 80):
        sizes = graph_sizes(max_size, interval)
        assert sizes == sorted(set(sizes))
        assert (sizes[0], sizes[-1]) == (1, max_size)


@pytest.mark.parametrize("bad", [0, -8, 2.0, True, "8", None])
def test_a_graph_size_below_one_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match=f"max_size is {bad!r}"):
        graph_sizes(bad)
    with pytest.raises(ConfigError, match=f"interval is {bad!r}"):
        graph_sizes(8, bad)


def test_a_batch_takes_the_time_of_the_next_larger_graph() -> None:
    curve = StepTimeCurve([(2, 10.0), (5, 11.0), (8, 15.0)])
    assert [curve.time_ms(tokens) for tokens in range(1, 9)] == [10.0, 10.0, 11.0, 11.0, 11.0, 15.0, 15.0, 15.0]
    assert [curve.graph_size(tokens) for tokens in range(1, 9)] == [2, 2, 5, 5, 5, 8, 8, 8]
    assert curve.largest == 8


BAD_CURVES: dict[str, list[Any]] = {
    "points is empty": [],
    r"points\[0\] has size 0": [(0, 1.0)],
    r"points\[1\] has size 4 after 4": [(4, 1.0), (4, 2.0)],
    r"points\[1\] has size 0; sizes are at least 1": [(4, 1.0), (0, 1.0)],
    r"points\[2\] has size 3 after 8": [(4, 1.0), (8, 2.0), (3, 3.0)],
    r"points\[1\] takes nan ms": [(4, 1.0), (8, math.nan)],
    r"points\[0\] takes -inf ms": [(4, -math.inf)],
    r"points\[0\] takes 0\.0 ms": [(4, 0.0), (8, 1.0)],
    r"points\[1\] is 8; a pair": [(4, 1.0), 8],
    r"points\[0\] is \(4,\); a pair": [(4,)],
    r"points\[0\] is \(4\.0, 1\.0\); a pair": [(4.0, 1.0)],
    r"points\[0\] is \(True, 1\); a pair": [(True, 1)],
    r"points\[0\] is \(1, '2'\); a pair": [(1, "2")],
}


@pytest.mark.parametrize("message", BAD_CURVES)
def test_a_bad_curve_is_refused_and_the_old_one_stays(message: str) -> None:
    budget = ThroughputBudget()
    budget.set_step_time_curve([(4, 1.0)])
    with pytest.raises(ConfigError, match=message):
        budget.set_step_time_curve(BAD_CURVES[message])
    with pytest.raises(ValueError, match="graph_size is 5; the largest graph of the curve is 4"):
        budget.record_step_time(1, 5, 1.0, 1.0)


@pytest.mark.parametrize("points", [[(4.5, 1.0)], [("4", 1.0)], [(4, "1.0")], [(4, None)], [(4,)], 4])
def test_a_curve_of_other_types_is_refused(points: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        StepTimeCurve(points)
