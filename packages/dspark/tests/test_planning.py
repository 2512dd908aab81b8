"""Planning: the published figures, the arithmetic behind them, and what is refused."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dspark_testing.synthetic import synthetic_records
from numpy.typing import NDArray

from thalweg.dspark import (
    Batches,
    BetaWorkload,
    ConfidenceRecords,
    MeasuredWorkload,
    PlanRow,
    StepTimeCurve,
    graph_sizes,
    plan,
    workload_of_records,
)
from thalweg.dspark.planning import concurrencies_within
from thalweg.interfaces import ConfigError

TABLE = json.loads((Path(__file__).parent / "golden/article_qa_table.json").read_text())
POINTS = [(32, 9.99), *((size, time_ms) for size, time_ms in TABLE["implied_step_ms_from_fixed5_rows"])]
CURVE = StepTimeCurve(POINTS).interpolated(graph_sizes(576, 8))
"""What the published rows with five drafts imply, on straight lines in between."""
WORKLOAD = BetaWorkload(0.70, 5, 4.5)


@dataclass(frozen=True)
class GivenWorkload:
    """The same batch again and again."""

    survival: NDArray[np.float32]
    """[N, G]"""

    @property
    def draft_length(self) -> int:
        return self.survival.shape[1]

    def draw(self, random: np.random.Generator, num_batches: int, num_sequences: int) -> Batches:
        survival = np.repeat(self.survival[None], num_batches, axis=0)
        return Batches(survival, survival.astype(np.float64))


def of_sequences(rows: Sequence[PlanRow]) -> dict[int, PlanRow]:
    return {row.num_sequences: row for row in rows}


@pytest.mark.parametrize("seed", [1000, 0, 1])
def test_the_published_table_comes_out(seed: int) -> None:
    """Gain in per cent, verified drafts and accepted length of the Q&A workload, within the bands set for them."""
    rows = of_sequences(plan(CURVE, WORKLOAD, [16, 32, 60, 96], seed=seed))
    assert 0 <= 100 * rows[16].gain <= 1.2
    assert 0.5 <= 100 * rows[32].gain <= 2.5
    assert 100 * rows[60].gain == pytest.approx(5.4, abs=1.5)
    assert rows[60].variable.verified_drafts == pytest.approx(3.58, abs=0.2)
    assert 9 <= 100 * rows[96].gain <= 17
    assert 2.7 <= rows[96].variable.verified_drafts <= 3.4
    for reported in TABLE["reported"]:
        row = rows[reported["num_seqs"]]
        assert row.fixed.tokens_per_s == pytest.approx(reported["fixed5"], rel=0.02)
        assert row.variable.tokens_per_s == pytest.approx(reported["dynamic"], rel=0.04)
    assert rows[60].fixed.accepted_length == pytest.approx(3.30, abs=0.05)
    assert rows[60].variable.accepted_length == pytest.approx(3.21, abs=0.1)


@pytest.mark.parametrize("recorded", TABLE["model_rows"], ids=lambda row: f"{row['num_seqs']} sequences")
def test_the_recorded_model_rows_come_out_to_the_last_digit(recorded: dict[str, float]) -> None:
    """Its throughput is the mean over steps, ours the tokens of all steps over their time: 0.06 % apart at most."""
    (row,) = plan(StepTimeCurve(TABLE["model_curve"]), WORKLOAD, [int(recorded["num_seqs"])], num_batches=24, seed=1000)
    assert row.fixed.tokens_per_s == pytest.approx(recorded["model_fixed5_tok_s"], abs=0.06)
    assert row.variable.tokens_per_s == pytest.approx(recorded["model_dynamic_tok_s"], rel=6e-4)
    assert row.variable.verified_drafts == pytest.approx(recorded["model_avg_verified_drafts"], abs=0.0006)
    assert row.fixed.accepted_length == pytest.approx(recorded["model_tau_fixed"], abs=0.0006)
    assert row.variable.accepted_length == pytest.approx(recorded["model_tau_dynamic"], abs=0.0006)


@pytest.mark.parametrize("stored", TABLE["stored_batches"], ids=lambda stored: f"{stored['num_seqs']} sequences")
def test_stored_batches_have_the_figures_of_their_recorded_lengths(stored: dict[str, Any]) -> None:
    curve = StepTimeCurve(TABLE["model_curve"])
    for batch in stored["batches"]:
        survival = np.array(batch["rates"], np.float32)
        (row,) = plan(curve, GivenWorkload(survival), [stored["num_seqs"]], num_batches=1)
        lengths = np.array(batch["seqlens_q"])
        accepted = survival[np.arange(5) < lengths[:, None] - 1].sum(dtype=np.float64)
        tokens_per_ms = (len(lengths) + accepted) / curve.time_ms(int(lengths.sum()))
        assert row.variable.tokens_per_s == pytest.approx(1000 * tokens_per_ms)
        assert row.variable.verified_drafts == pytest.approx(lengths.mean() - 1)


def test_confidences_multiply_to_survival_and_add_up_to_the_accepted_length() -> None:
    records = ConfidenceRecords(np.array([[0.9, 0.8, 0.7, 0.5, 0.3]]), np.array([5]))
    survival = workload_of_records(records, [1.0] * 5).draw(np.random.default_rng(0), 1, 1).survival
    assert survival.ravel() == pytest.approx([0.9, 0.72, 0.504, 0.252, 0.0756], rel=1e-6)
    (row,) = plan(StepTimeCurve([(6, 1.0)]), GivenWorkload(survival[0]), [1], num_batches=1)
    assert row.fixed.accepted_length == pytest.approx(3.4516)


def test_the_worked_example_verifies_four_and_two_drafts() -> None:
    survival = np.array([[0.95, 0.85, 0.60, 0.30, 0.10], [0.70, 0.40, 0.20, 0.10, 0.05]], np.float32)
    curve = StepTimeCurve([(4, 18.0), (6, 19.0), (8, 21.0), (12, 25.0)])
    (row,) = plan(curve, GivenWorkload(survival), [2], num_batches=3)
    assert row.variable.verified_drafts == 3.0
    assert row.variable.step_ms == 21.0
    assert row.variable.tokens_per_s == pytest.approx(276, abs=0.5)
    assert row.fixed.tokens_per_s == pytest.approx(250, abs=0.5)
    assert row.gain == pytest.approx(0.276 / 0.250 - 1, abs=0.003)


@pytest.mark.parametrize(("draft_length", "expected"), [(5, 3.2881), (3, 2.7344)])
def test_requests_that_are_all_alike_accept_a_geometric_sum(draft_length: int, expected: float) -> None:
    (row,) = plan(CURVE, BetaWorkload(0.75, draft_length), [4], num_batches=1)
    assert row.fixed.accepted_length == pytest.approx(expected, abs=5e-5)


def test_differences_between_requests_are_what_pays() -> None:
    alike, different = (plan(CURVE, BetaWorkload(0.7, 5, c), [96], num_batches=20)[0] for c in (math.inf, 2.0))
    assert different.gain > alike.gain + 0.05


def test_what_was_accepted_counts_and_not_what_was_expected() -> None:
    """Confidences that promise everything while nothing holds: all is verified in vain."""
    records = ConfidenceRecords(np.ones((10, 5)), np.zeros(10, np.int64))
    (row,) = plan(CURVE, workload_of_records(records, [1.0] * 5), [8], num_batches=2)
    assert (row.variable.verified_drafts, row.variable.accepted_length) == (5.0, 1.0)


def test_calibration_raises_the_throughput_of_a_drafter_that_promises_too_much() -> None:
    records = synthetic_records(20_000, (3.0,) * 5)
    raw, fitted = (workload_of_records(records, [temperature] * 5) for temperature in (1.0, 3.0))
    raw_rows, fitted_rows = (plan(CURVE, workload, [96]) for workload in (raw, fitted))
    assert fitted_rows[0].variable.tokens_per_s > 1.002 * raw_rows[0].variable.tokens_per_s
    assert fitted_rows[0].fixed == raw_rows[0].fixed


def test_a_sampler_costs_both_and_makes_drafts_cheaper_beside_it() -> None:
    without, beside = (plan(CURVE, WORKLOAD, [96], sampler_ms=ms)[0] for ms in (0.0, 10.0))
    assert beside.fixed.step_ms == pytest.approx(without.fixed.step_ms + 10)
    assert beside.variable.verified_drafts > without.variable.verified_drafts + 0.3


def test_equal_seeds_give_equal_rows_whatever_else_is_asked_for() -> None:
    rows = of_sequences(plan(CURVE, WORKLOAD, [1, 7, 32], num_batches=5, seed=3))
    assert plan(CURVE, WORKLOAD, [7], num_batches=5, seed=3) == [rows[7]]
    assert plan(CURVE, WORKLOAD, [7], num_batches=5, seed=4) != [rows[7]]


def test_variable_verification_is_never_planned_to_lose() -> None:
    """In its own model: the budget may always choose what fixed verification does."""
    for row in plan(CURVE, WORKLOAD, concurrencies_within(CURVE, 5), num_batches=10):
        assert row.gain >= -1e-6


@pytest.mark.parametrize(("accept_rate", "accepted_length"), [(0.0, 1.0), (1.0, 6.0)])
def test_requests_that_accept_nothing_or_everything(accept_rate: float, accepted_length: float) -> None:
    (row,) = plan(CURVE, BetaWorkload(accept_rate, 5, 0.01), [3], num_batches=2)
    assert row.fixed.accepted_length == accepted_length


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("accept_rate", [1e-300, 1e-9, 1 - 2**-53])
@pytest.mark.parametrize("concentration", [0.01, 1e9])
def test_extreme_distributions_give_numbers(accept_rate: float, concentration: float) -> None:
    (row,) = plan(CURVE, BetaWorkload(accept_rate, 5, concentration), [3], num_batches=20)
    assert 1 <= row.fixed.accepted_length <= 6


def test_concurrencies_are_powers_of_two_and_the_largest_that_fits() -> None:
    assert concurrencies_within(CURVE, 5) == [1, 2, 4, 8, 16, 32, 64, 96]
    assert concurrencies_within(StepTimeCurve([(6, 1.0)]), 5) == [1]
    assert concurrencies_within(StepTimeCurve([(48, 1.0)]), 5) == [1, 2, 4, 8]
    with pytest.raises(ConfigError, match="the curve ends at 5 query tokens; one sequence needs 6"):
        concurrencies_within(StepTimeCurve([(5, 1.0)]), 5)


BAD_PLANS: dict[str, dict[str, Any]] = {
    r"concurrencies\[1\] is 0; an integer of at least 1": {"concurrencies": [1, 0]},
    r"concurrencies\[0\] is 1\.0": {"concurrencies": [1.0]},
    r"concurrencies\[0\] is True": {"concurrencies": [True]},
    "the curve ends at 576 query tokens; 97 sequences with 5 drafts need 582": {"concurrencies": [97]},
    "num_batches is 0; an integer of at least 1": {"num_batches": 0},
    "num_batches is '9'": {"num_batches": "9"},
    "6000000000 query tokens; at most 20000000 are simulated": {"num_batches": 10**9},
    "seed is -1; an integer of at least 0": {"seed": -1},
    "seed is None": {"seed": None},
    "sampler_ms is -0.1; a finite number of at least 0": {"sampler_ms": -0.1},
    "sampler_ms is nan": {"sampler_ms": math.nan},
    "sampler_ms is inf": {"sampler_ms": math.inf},
    "sampler_ms is '1'": {"sampler_ms": "1"},
}


@pytest.mark.parametrize("message", BAD_PLANS)
def test_a_bad_plan_is_refused(message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(CURVE, WORKLOAD, **{"concurrencies": [1], **BAD_PLANS[message]})


BAD_BETAS: dict[str, tuple[Any, ...]] = {
    "accept_rate is 1.5; a number from 0 to 1": (1.5, 5),
    "accept_rate is nan": (math.nan, 5),
    "accept_rate is '0.5'": ("0.5", 5),
    "draft_length is 0; an integer from 1 to 1024": (0.5, 0),
    "draft_length is True": (0.5, True),
    "draft_length is 2.0": (0.5, 2.0),
    "concentration is 0; at least 0.01": (0.5, 5, 0),
    "concentration is nan": (0.5, 5, math.nan),
    "concentration is None": (0.5, 5, None),
}


@pytest.mark.parametrize("message", BAD_BETAS)
def test_a_bad_distribution_is_refused(message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BetaWorkload(*BAD_BETAS[message])


ONE = np.ones((1, 2))
BAD_MEASURED: dict[str, tuple[Any, Any]] = {
    "survival is a list": ([[1.0]], ONE),
    "held is a float32 array": (ONE, ONE.astype(np.float32)),
    r"survival has shape \(0, 2\)": (np.empty((0, 2)), np.empty((0, 2))),
    r"held has shape \(1, 1\)": (ONE, np.ones((1, 1))),
    "survival has rows that are not numbers from 0 to 1": (ONE + 0.5, ONE),
    "held has rows that are not numbers from 0 to 1": (ONE, np.array([[0.5, np.nan]])),
    "survival has rows .*, or that increase": (np.array([[0.5, 0.6]]), ONE),
}


@pytest.mark.parametrize("message", BAD_MEASURED)
def test_bad_measured_rows_are_refused(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MeasuredWorkload(*BAD_MEASURED[message])


def test_records_are_planned_with_whole_rows_and_as_many_temperatures() -> None:
    records = ConfidenceRecords(np.array([[0.5, 0.5], [0.9, np.nan]]), np.array([2, 1]))
    workload = workload_of_records(records, (1.0, 1.0))
    assert workload.draw(np.random.default_rng(0), 5, 5).held.min() == 1.0
    with pytest.raises(ConfigError, match="there are 1 temperatures for 2 drafts"):
        workload_of_records(records, (1.0,))
    with pytest.raises(ConfigError, match="no record has all 2 drafts verified"):
        workload_of_records(ConfidenceRecords(np.array([[0.9, np.nan]]), np.array([1])), (1.0, 1.0))


def test_fewer_drafts_are_the_first_of_those_measured() -> None:
    workload = MeasuredWorkload(np.array([[0.75, 0.5, 0.25]]), np.array([[1.0, 1.0, 0.0]])).first(2)
    batches = workload.draw(np.random.default_rng(0), 1, 1)
    assert batches.survival.tolist() == [[[0.75, 0.5]]]
    assert batches.held.tolist() == [[[1.0, 1.0]]]
    for draft_length in (0, 3):
        with pytest.raises(ConfigError, match=f"draft_length is {draft_length}; the data has 1 to 2"):
            workload.first(draft_length)
