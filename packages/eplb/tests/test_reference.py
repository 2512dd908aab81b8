"""The reference planner repeats the recorded plans slot for slot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg.eplb import Placement, imbalance, plan, rank_loads
from thalweg.eplb.metrics import peak_load

GOLDEN = Path(__file__).parent / "golden"
SMALL = json.loads((GOLDEN / "policy_small.json").read_text())
ZIPF = json.loads((GOLDEN / "zipf384_ep64.json").read_text())


def zipf_history(case: dict[str, Any]) -> np.ndarray:
    weights = (1.0 + np.arange(384)) ** -case["skew"]
    counts = np.zeros((1, 1, 384), np.int64)
    experts = (np.arange(384) * case["perm_multiplier"] + case["perm_offset"]) % 384
    counts[0, 0, experts] = np.floor(case["total"] * weights / weights.sum())
    return counts


@pytest.mark.parametrize("case", SMALL, ids=[case["name"] for case in SMALL])
def test_small_plans_are_the_recorded_ones(case: dict[str, Any]) -> None:
    history = np.array(case["tokens_per_expert"], np.int32)
    placement = plan(history, case["num_physical"], case["num_ranks"], planner="reference")
    assert placement.logical_of_physical.tolist() == case["physical_to_logical"]
    assert placement.physical_of_logical.tolist() == case["logical_to_physical"]
    assert placement.copies().tolist() == case["logical_count"]
    np.testing.assert_allclose(peak_load(history, placement), case["objective_per_layer"], rtol=1e-6)
    expected = 1.0 if case["moe_lb"] is None else case["moe_lb"]
    assert imbalance(rank_loads(history, placement)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", sorted(ZIPF))
def test_plans_of_zipf_counts_are_the_recorded_ones(name: str) -> None:
    case, history = ZIPF[name], zipf_history(ZIPF[name])
    placement = plan(history, 448, 64, planner="reference")
    assert placement.logical_of_physical[0].tolist() == np.ravel(case["physical_to_logical"]).tolist()
    assert placement.copies()[0].tolist() == np.ravel(case["logical_count"]).tolist()
    assert imbalance(rank_loads(history, placement)) == pytest.approx(case["moe_lb_after"], rel=1e-6)
    plain = Placement.initial(1, 384, 384, 64)
    assert imbalance(rank_loads(history, plain)) == pytest.approx(case["moe_lb_plain"], rel=1e-6)


def test_the_plan_of_a_history_of_topics_is_the_recorded_one() -> None:
    recorded = np.load(GOLDEN / "history_topics_ep16.npz")
    history = recorded["tokens_per_expert"]
    placement = plan(history[:16], 400, 16, planner="reference")
    np.testing.assert_array_equal(placement.logical_of_physical, recorded["physical_to_logical"])
    np.testing.assert_array_equal(placement.copies(), recorded["logical_count"])
    assert imbalance(rank_loads(history[:16], placement)) == pytest.approx(float(recorded["in_sample_lb"]), rel=1e-6)
    assert imbalance(rank_loads(history[16:], placement)) == pytest.approx(float(recorded["out_sample_lb"]), rel=1e-6)


def test_exact_ties_send_every_copy_to_expert_0_as_the_reference_does() -> None:
    recorded = json.loads((GOLDEN / "harmonic_tie.json").read_text())
    counts = np.floor(1663200 / (1 + np.arange(384))).reshape(1, 1, 384)
    for case in recorded["cases"]:
        placement = plan(counts, case["num_physical"], case["num_ranks"], planner="reference")
        assert placement.copies()[0, 0] == case["reference_copies_of_expert0"]
        assert imbalance(rank_loads(counts, placement)) == pytest.approx(case["reference_moe_lb"], abs=1e-4)
