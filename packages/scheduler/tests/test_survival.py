"""Which round decides: a draft is verified or not whatever its own token led to."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_testing.budgets import BUDGETS, BudgetKind, lengths

from thalweg.dspark import redistribute
from thalweg.interfaces import InvariantError

LATEST = np.array([0.5, 0.25], np.float32)
PREVIOUS = np.array([1.0, 0.125], np.float32)
CURVE = ((3, 10.0), (5, 11.5), (8, 14.0), (11, 18.0), (14, 24.0), (18, 30.0))


@pytest.fixture(params=sorted(BUDGETS))
def kind(request: pytest.FixtureRequest) -> BudgetKind:
    return BUDGETS[request.param]


def rounds(kind: BudgetKind, **state: Any) -> list[list[float]]:
    defaults = {"num_drafts": 2, "has_draft_info": False, "rates": LATEST, "prev_rates": PREVIOUS}
    return [row.tolist() for row in kind.survival_for_step(**(defaults | state))]


def test_a_synchronous_step_takes_its_budget_from_the_round_before_the_last(kind: BudgetKind) -> None:
    assert rounds(kind, schedule_count=4, process_count=4) == [[1.0, 0.125], [0.5, 0.25]]


def test_with_a_step_in_flight_the_last_processed_round_is_the_one_before_the_last(kind: BudgetKind) -> None:
    assert rounds(kind, schedule_count=5, process_count=4) == [[0.5, 0.25], [0.5, 0.25]]


@pytest.mark.parametrize("unknown", [None, np.empty(0, np.float32)])
def test_an_unknown_round_counts_as_certain_if_there_are_real_drafts(kind: BudgetKind, unknown: Any) -> None:
    nothing = {"rates": unknown, "prev_rates": unknown}
    assert rounds(kind, schedule_count=1, process_count=1, **nothing) == [[0.0, 0.0]] * 2
    assert rounds(kind, schedule_count=1, process_count=1, has_draft_info=True, **nothing) == [[1.0, 1.0]] * 2
    assert rounds(kind, schedule_count=2, process_count=1, **nothing) == [[1.0, 1.0]] * 2
    half = {"prev_rates": unknown, "has_draft_info": True}
    assert rounds(kind, schedule_count=2, process_count=2, **half) == [[1.0, 1.0], [0.5, 0.25]]


@pytest.mark.parametrize(("scheduled", "processed"), [(4, 2), (2, 3), (0, 1)])
def test_more_than_one_step_in_flight_is_a_bug(kind: BudgetKind, scheduled: int, processed: int) -> None:
    with pytest.raises(InvariantError, match=f"schedule_count is {scheduled} and process_count is {processed}"):
        rounds(kind, schedule_count=scheduled, process_count=processed)


def test_survival_of_another_number_of_drafts_is_a_bug(kind: BudgetKind) -> None:
    with pytest.raises(InvariantError, match="survival of 2 drafts is known; the sequence has 3"):
        rounds(kind, num_drafts=3, schedule_count=4, process_count=4)
    with pytest.raises(InvariantError, match="survival of 2 drafts is known; the sequence has 0"):
        rounds(kind, num_drafts=0, schedule_count=4, process_count=4, rates=None)


def test_survival_is_the_product_of_confidences_in_float32(kind: BudgetKind) -> None:
    confidences = np.array([0.9, 0.8, 0.7, 0.5, 0.3], np.float32)
    survival = kind.running_product(confidences)
    assert survival.dtype == np.float32
    expected = confidences[0]
    for j in range(1, 5):
        expected = np.float32(expected * confidences[j])
        assert survival[j] == expected
    assert survival == pytest.approx([0.9, 0.72, 0.504, 0.252, 0.0756])
    assert kind.running_product(np.empty(0, np.float32)).shape == (0,)


def is_verified(lengths: list[int], row: int, draft: int) -> bool:
    return lengths[row] > 1 + draft


def plan(kind: BudgetKind, previous: np.ndarray, latest: np.ndarray) -> list[int]:
    """Verify lengths of a synchronous step from the confidences of the two rounds, [N, G] each."""
    budget = kind.with_curve(*CURVE)
    survival = [
        kind.survival_for_step(
            num_drafts=latest.shape[1],
            has_draft_info=True,
            schedule_count=3,
            process_count=3,
            rates=kind.running_product(latest[i]),
            prev_rates=kind.running_product(previous[i]),
        )
        for i in range(len(latest))
    ]
    return [int(q) for q in budget.verify_lengths([row for row, _ in survival], [row for _, row in survival])]


SOME = st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]) | st.floats(0, 1, width=32)
MATRIX = st.lists(SOME, min_size=15, max_size=15).map(lambda values: np.array(values, np.float32).reshape(3, 5))


@settings(max_examples=60, deadline=None)
@given(MATRIX, MATRIX, MATRIX)
def test_no_confidence_decides_about_an_earlier_draft(previous: Any, latest: Any, other: Any) -> None:
    """A confidence after draft j was computed from the token of draft j: it may not say whether that is verified."""
    for kind, row, draft in product(BUDGETS.values(), range(3), range(5)):
        changed = latest.copy()
        changed[row, draft + 1 :] = other[row, draft + 1 :]
        before, after = plan(kind, previous, latest), plan(kind, previous, changed)
        assert sum(before) == sum(after)
        assert is_verified(before, row, draft) == is_verified(after, row, draft)


@settings(max_examples=60, deadline=None)
@given(MATRIX, MATRIX, st.integers(3, 18))
def test_no_confidence_decides_about_an_earlier_draft_on_the_device(latest: Any, other: Any, total: int) -> None:
    """With a step in flight the host fixes the total, and the device splits it by the round that just ended."""
    rows = np.arange(3, dtype=np.int32)
    for row, draft in product(range(3), range(5)):
        changed = latest.copy()
        changed[row, draft + 1 :] = other[row, draft + 1 :]
        before, after = (redistribute(total, rows, round_).tolist() for round_ in (latest, changed))
        assert is_verified(before, row, draft) == is_verified(after, row, draft)


def test_a_budget_from_the_last_round_would_let_a_later_draft_decide(kind: BudgetKind) -> None:
    """Why there are two rounds: here draft 0 is verified only because draft 1 is confident."""
    budget = kind.with_curve((1, 10.0), (3, 24.0))
    assert lengths(budget, [[0.9, 0.0]]) == [1]
    assert lengths(budget, [[0.9, 0.9]]) == [3]
