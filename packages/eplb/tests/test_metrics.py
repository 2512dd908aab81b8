"""Imbalance, moved slots, and what a monitor reports of a layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from thalweg.eplb import BalanceMonitor, Placement, imbalance, moved_slots, rank_loads
from thalweg.eplb.metrics import imbalance_per_layer, peak_load
from thalweg.interfaces import ConfigError

RECORDED = json.loads((Path(__file__).parent / "golden" / "moe_lb.json").read_text())


def placement(*layers: list[int], num_ranks: int = 2) -> Placement:
    return Placement.from_slots(np.array(layers, np.int32), num_ranks, max(max(layer) for layer in layers) + 1)


def test_copies_share_the_tokens_of_their_expert_evenly() -> None:
    history = np.array([[[6, 4, 2]], [[0, 0, 8]]])
    loads = rank_loads(history, placement([0, 1, 2, 0]))
    assert loads.tolist() == [[[3 + 4, 2 + 3]], [[0, 8]]]
    two_on_one_rank = rank_loads(history, placement([0, 0, 1, 2]))
    assert two_on_one_rank.tolist() == [[[6, 6]], [[0, 8]]]
    assert peak_load(history, placement([0, 1, 2, 0])).tolist() == [15.0]


def test_imbalance_is_a_ratio_of_sums_so_heavy_steps_weigh_more() -> None:
    loads = np.array([[[3.0, 1.0]], [[30.0, 30.0]]])
    assert imbalance(loads) == pytest.approx(33 / 32)
    assert imbalance_per_layer(np.concatenate([loads, loads[:, :, :1] * [1, 1]], axis=1)).tolist() == [33 / 32, 1.0]
    assert imbalance(np.zeros((4, 2, 3))) == 1.0


def test_moved_slots_are_those_a_rank_must_receive() -> None:
    old = placement([0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 0, 1])
    new = placement([2, 0, 1, 1, 3, 0], [0, 1, 2, 2, 0, 3], [3, 3, 1, 0, 2, 1])
    assert moved_slots(old, new).tolist() == [0, 1, 3]
    assert moved_slots(old, old).tolist() == [0, 0, 0]
    with pytest.raises(ConfigError, match="num_layers of one placement is 3 and of the other 1"):
        moved_slots(old, placement([0, 1, 2, 3, 0, 1]))


def test_loads_of_another_shape_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"placement has \(layers, experts\) \(1, 3\); the history has \(1, 4\)"):
        rank_loads(np.ones((1, 1, 4)), placement([0, 1, 2, 0]))


@pytest.mark.parametrize("case", RECORDED)
def test_live_imbalance_is_the_recorded_one(case: dict[str, object]) -> None:
    tokens = np.array(case["tokens"])
    monitor = BalanceMonitor(tokens.shape[2], expert_bytes=1)
    monitor.record(tokens[:, :1])
    monitor.record(tokens[:, 1:])
    report = monitor.report(step=5)
    assert report.live_imbalance == pytest.approx(1.0 if case["moe_lb"] is None else case["moe_lb"])
    expected = imbalance_per_layer(tokens.transpose(1, 2, 0).astype(float))
    np.testing.assert_allclose(report.live_imbalance_per_layer, expected)
    assert np.isnan(report.planned_imbalance).all()
    assert report.age_steps.tolist() == [5] * tokens.shape[2]


def test_a_report_says_of_each_layer_what_was_promised_and_moved_and_how_old_it_is() -> None:
    old, new = placement([0, 1, 2, 3], [0, 1, 2, 3]), placement([0, 2, 1, 3], [0, 1, 2, 3])
    newest = placement([0, 3, 1, 2], [3, 1, 2, 0])
    monitor = BalanceMonitor(2, expert_bytes=100, first_step=2)
    monitor.adopt(7, old, new, np.array([1.25, 9.0]))
    monitor.record(np.array([[[3, 1]], [[1, 1]]]))
    report = monitor.report(step=12)
    assert report.live_imbalance == pytest.approx(4 / 3)
    assert report.live_imbalance_per_layer.tolist() == [1.5, 1.0]
    np.testing.assert_array_equal(report.planned_imbalance, [1.25, np.nan])
    assert report.age_steps.tolist() == [5, 10]
    assert report.moved_slots.tolist() == [2, 0]
    assert report.moved_bytes.tolist() == [200, 0]
    monitor.adopt(20, new, newest, np.array([1.5, 1.75]))
    later = monitor.report(step=21)
    assert later.live_imbalance == 1.0  # nothing since
    assert later.planned_imbalance.tolist() == [1.5, 1.75]
    assert later.age_steps.tolist() == [1, 1]
    assert later.moved_slots.tolist() == [4, 2]
    assert report.moved_slots.tolist() == [2, 0]  # as it was


def test_a_monitor_refuses_what_cannot_be_its_loads_or_placements() -> None:
    with pytest.raises(ConfigError, match="expert_bytes is 0"):
        BalanceMonitor(2, expert_bytes=0)
    monitor, layer = BalanceMonitor(2, 1), placement([0, 1, 2, 3])
    with pytest.raises(ConfigError, match=r"loads have shape \(2, 1, 3\); it must be \[ranks, steps, 2 layers\]"):
        monitor.record(np.zeros((2, 1, 3), np.int64))
    with pytest.raises(ConfigError, match=r"1 layers and planned_imbalance of \(2,\); it must be 2 of both"):
        monitor.adopt(0, layer, layer, np.ones(2))
