"""The budget decides the recorded steps as recorded, and the figures of the published table come out."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from thalweg.dspark import StepTimeCurve, ThroughputBudget

GOLDEN = Path(__file__).parent / "golden"
TABLE = json.loads((GOLDEN / "article_qa_table.json").read_text())
DRAFT_LENGTH = 5


def budget_with(points: Any) -> ThroughputBudget:
    budget = ThroughputBudget()
    if points:
        budget.set_step_time_curve(points)
    return budget


def rounds(sequence: dict[str, Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The survival that the recorded scheduler looked at: the round before the last, and the last."""
    is_in_flight = sequence["schedule_cnt"] == sequence["process_cnt"] + 1
    unknown = [float(sequence["has_draft_info"] or is_in_flight)] * sequence["nd"]
    latest = sequence["rates"] or unknown
    previous = latest if is_in_flight else sequence["prev_rates"] or unknown
    return np.array(previous, np.float32), np.array(latest, np.float32)


@pytest.mark.parametrize("name", ["varlen_schedule_named", "varlen_schedule_random_a", "varlen_schedule_random_b"])
def test_recorded_steps_get_the_recorded_lengths(name: str) -> None:
    cases = [case for case in json.loads((GOLDEN / f"{name}.json").read_text()) if "error" not in case["expect"]]
    assert len(cases) >= 19
    for case in cases:
        budget = budget_with(case["curve"])
        for update in case["updates"]:
            budget.record_step_time(*update)
        survival = [rounds(sequence) for sequence in case["seqs"]]
        chosen = budget.verify_lengths([row for row, _ in survival], [row for _, row in survival])
        assert chosen.tolist() == case["expect"]["seqlens_q"], case.get("name", case.get("id"))
        assert budget.slope_ms == pytest.approx(case["expect"]["slope_ms"], rel=1e-6, abs=1e-7)
        assert budget.sampler_fallback_ms == case["expect"]["sampler_fallback_ms"]


def test_the_stored_batches_of_the_table_get_the_recorded_lengths() -> None:
    budget = budget_with(TABLE["model_curve"])
    for stored in TABLE["stored_batches"]:
        for batch in stored["batches"]:
            rows = [np.array(row, np.float32) for row in batch["rates"]]
            assert budget.verify_lengths(rows, rows).tolist() == batch["seqlens_q"]


@dataclass(frozen=True)
class Figures:
    """Means over batches."""

    gain_pct: float
    verified: float
    """Verified drafts per sequence."""
    accepted: float
    """Accepted length: tokens committed per sequence and step."""


def simulate(num_seqs: int) -> Figures:
    """The table's own model: 24 batches of requests that accept each draft with a chance of their own."""
    curve, budget = StepTimeCurve(TABLE["model_curve"]), budget_with(TABLE["model_curve"])
    chances = np.random.default_rng(1000 + num_seqs).beta(0.70 * 4.5, 0.30 * 4.5, size=(24, num_seqs, 1))
    survival = np.cumprod(np.repeat(chances, DRAFT_LENGTH, axis=2), axis=2).astype(np.float32)
    fixed, dynamic, verified, accepted = [], [], [], []
    for batch in survival:
        lengths = budget.verify_lengths(list(batch), list(batch))
        is_verified = np.arange(1, 1 + DRAFT_LENGTH) < lengths[:, None]
        fixed.append((num_seqs + batch.sum()) / curve.time_ms(num_seqs * (1 + DRAFT_LENGTH)))
        dynamic.append((num_seqs + batch[is_verified].sum()) / curve.time_ms(int(lengths.sum())))
        verified.append(is_verified.sum() / num_seqs)
        accepted.append(1 + batch[is_verified].sum() / num_seqs)
    means = [float(np.mean(values)) for values in (fixed, dynamic, verified, accepted)]
    return Figures(100 * (means[1] / means[0] - 1), means[2], means[3])


@pytest.mark.parametrize("row", TABLE["model_rows"], ids=lambda row: f"{row['num_seqs']} sequences")
def test_the_model_of_the_published_table_gives_the_recorded_figures(row: dict[str, float]) -> None:
    figures = simulate(int(row["num_seqs"]))
    assert figures.gain_pct == pytest.approx(row["model_gain_pct"], abs=0.006)
    assert figures.verified == pytest.approx(row["model_avg_verified_drafts"], abs=0.0006)
    assert figures.accepted == pytest.approx(row["model_tau_dynamic"], abs=0.0006)


def test_at_sixty_sequences_the_model_agrees_with_the_published_measurement() -> None:
    """5.4 % more tokens, 3.58 of 5 drafts verified."""
    figures = simulate(60)
    assert figures.gain_pct == pytest.approx(5.4, abs=1.5)
    assert figures.verified == pytest.approx(3.58, abs=0.2)


def test_rows_that_pad_a_graph_are_never_paid_for_twice() -> None:
    """37 query tokens run the graph of 40, so the budget goes up to 40 as long as drafts have a chance."""
    budget = budget_with([(size, float(size)) for size in (32, 40, 48)])
    rows = [np.full(1, 0.01, np.float32)] * 37
    assert int(budget.verify_lengths(rows, rows).sum()) == 40


def test_the_slope_makes_large_graphs_dearer() -> None:
    budget = budget_with([(2, 10.0), (4, 10.5), (8, 12.0), (12, 20.0)])
    rows = [np.array(row, np.float32) for row in ([0.95, 0.85, 0.6, 0.3, 0.1], [0.7, 0.4, 0.2, 0.1, 0.05])]
    assert budget.verify_lengths(rows, rows).tolist() == [5, 3]
    for _ in range(10):
        budget.record_step_time(2, 8, 60.0, 1.0)
    assert budget.slope_ms == 6.0
    assert budget.verify_lengths(rows, rows).tolist() == [3, 1]


def test_a_long_sampler_makes_large_graphs_cheaper_beside_it() -> None:
    budget = budget_with([(2, 10.0), (12, 30.0)])
    rows = [np.full(5, 0.2, np.float32)] * 2
    assert budget.verify_lengths(rows, rows).tolist() == [1, 1]
    for _ in range(5):
        budget.record_step_time(2, 12, 30.0, 50.0)
    assert budget.verify_lengths(rows, rows).tolist() == [6, 6]


@pytest.mark.filterwarnings("error")
def test_a_step_that_takes_next_to_nothing_is_planned_without_a_warning() -> None:
    budget = ThroughputBudget()
    budget.set_step_time_curve([(8, 1e-320)])
    survival = [np.array([0.9, 0.5], np.float32)]
    assert budget.verify_lengths(survival, survival).tolist() == [1]
