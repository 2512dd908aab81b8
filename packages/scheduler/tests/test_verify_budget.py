"""The verification budget in both languages: recorded choices, the exact rule, and bad input."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_testing.budgets import BUDGETS, BudgetKind, decide_random_step, float_rows, lengths

from thalweg.interfaces import ConfigError, InvariantError

GOLDEN = Path(__file__).parent / "golden"
TOY_CURVE = ((4, 18.0), (6, 19.0), (8, 21.0), (12, 25.0))


def load(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.fixture(params=sorted(BUDGETS))
def kind(request: pytest.FixtureRequest) -> BudgetKind:
    return BUDGETS[request.param]


@pytest.mark.parametrize("name", ["varlen_schedule_named", "varlen_schedule_random_a", "varlen_schedule_random_b"])
def test_recorded_steps_get_the_recorded_lengths(kind: BudgetKind, name: str) -> None:
    """Also what was learned from the recorded step times; those are stored with seven digits."""
    cases = load(name)
    assert len(cases) >= 21
    for case in cases:
        budget = kind.with_curve(*case["curve"]) if case["curve"] else kind.Budget()
        for update in case["updates"]:
            budget.record_step_time(*update)
        expected = case["expect"]
        if "error" in expected:
            with pytest.raises((ValueError, InvariantError)):
                recorded_lengths(kind, budget, case["seqs"])
            continue
        assert recorded_lengths(kind, budget, case["seqs"]) == expected["seqlens_q"], case.get("name", case.get("id"))
        assert budget.slope_ms == pytest.approx(expected["slope_ms"], rel=1e-6, abs=1e-7)
        assert budget.sampler_fallback_ms == expected["sampler_fallback_ms"]


def recorded_lengths(kind: BudgetKind, budget: Any, sequences: list[dict[str, Any]]) -> list[int]:
    survival = [
        kind.survival_for_step(
            num_drafts=sequence["nd"],
            has_draft_info=sequence["has_draft_info"],
            schedule_count=sequence["schedule_cnt"],
            process_count=sequence["process_cnt"],
            rates=np.array(sequence["rates"], np.float32),
            prev_rates=np.array(sequence["prev_rates"], np.float32),
        )
        for sequence in sequences
    ]
    result = budget.verify_lengths([row for row, _ in survival], [row for _, row in survival])
    return [int(length) for length in result]


def test_the_batches_of_the_published_table_get_the_recorded_lengths(kind: BudgetKind) -> None:
    table = load("article_qa_table")
    budget = kind.with_curve(*table["model_curve"])
    batches = [batch for stored in table["stored_batches"] for batch in stored["batches"]]
    assert len(batches) == 7
    for batch in batches:
        assert lengths(budget, batch["rates"]) == batch["seqlens_q"]


def test_recorded_samples_give_the_recorded_estimates(kind: BudgetKind) -> None:
    """A flat curve of 1000 ms makes a slope sample of any residual; the subtraction costs a few digits."""
    for trace in load("runtime_estimators")["short"]:
        budget = kind.with_curve((64, 1000.0))
        samples = zip(trace["graph_sizes"], trace["residuals"], trace["sampler_ms"], strict=True)
        after = zip(trace["slope_after_each"], trace["sampler_median_after_each"], strict=True)
        for (size, residual, sampler_ms), (slope, median) in zip(samples, after, strict=True):
            budget.record_step_time(3, size, 1000.0 + residual * size, sampler_ms)
            assert budget.slope_ms == pytest.approx(slope, abs=1e-12)
            assert budget.sampler_fallback_ms == median


def test_a_slope_sample_leaves_after_five_thousand_steps(kind: BudgetKind) -> None:
    trace = load("runtime_estimators")["eviction"]
    budget = kind.with_curve((64, 1000.0))
    expected = dict(zip(trace["checkpoints"], trace["slope_at"], strict=True))
    for i, (size, residual) in enumerate(zip(trace["graph_sizes"], trace["residuals"], strict=True)):
        budget.record_step_time(3, size, 1000.0 + residual * size, 1.0)
        if i in expected:
            assert budget.slope_ms == pytest.approx(expected.pop(i), abs=1e-12)
    assert not expected


def test_exactly_five_thousand_steps_count(kind: BudgetKind) -> None:
    """With the first of them the last of ten samples of its size leaves, and the size no longer counts."""
    budget = kind.with_curve((8, 10.0), (16, 10.0))
    for size, excess_ms in [(8, 3.0)] * 10 + [(16, 1.0)] * 4990:
        budget.record_step_time(3, size, 10.0 + excess_ms * size, 1.0)
    assert budget.slope_ms == 2.0
    budget.record_step_time(3, 16, 10.0 + 16.0, 1.0)
    assert budget.slope_ms == 1.0


def test_a_negative_slope_counts_as_zero(kind: BudgetKind) -> None:
    """Two tokens in 20.5 ms do not pay; if the measured half millisecond per token came off, they would."""
    budget = kind.with_curve((1, 10.0), (4, 20.5))
    for _ in range(10):
        budget.record_step_time(3, 4, 18.5, 0.0)
    assert budget.slope_ms == -0.5
    assert lengths(budget, [[1.0]]) == [1]


def test_the_worked_example_verifies_four_and_two_drafts(kind: BudgetKind) -> None:
    """0.111, 0.211, 0.268, 0.276, 0.250 tokens/ms at 2, 4, 6, 8, 12 query tokens."""
    survival = [[0.95, 0.85, 0.6, 0.3, 0.1], [0.7, 0.4, 0.2, 0.1, 0.05]]
    assert lengths(kind.with_curve(*TOY_CURVE), survival) == [5, 3]


def test_a_valley_in_the_curve_is_crossed(kind: BudgetKind) -> None:
    """Verifying one draft pays less than none, verifying three pays most."""
    budget = kind.with_curve((1, 10.0), (2, 25.0), (4, 25.0))
    assert lengths(budget, [[1.0, 1.0, 1.0]]) == [4]


def test_expected_tokens_are_added_in_float32(kind: BudgetKind) -> None:
    """2**-25 is lost beside 1: in float64 the draft would pay on a flat curve."""
    budget = kind.with_curve((8, 10.0))
    assert lengths(budget, [[2.0**-25]]) == [1]
    assert lengths(budget, [[2.0**-23]]) == [2]


def test_times_are_compared_in_float64(kind: BudgetKind) -> None:
    """Twice the tokens in hardly more than twice the time do not pay, in hardly less they do."""
    assert lengths(kind.with_curve((1, 10.0), (2, 20.000000001)), [[1.0]]) == [1]
    assert lengths(kind.with_curve((1, 10.0), (2, 19.999999999)), [[1.0]]) == [2]


def test_equal_throughput_keeps_the_smaller_step(kind: BudgetKind) -> None:
    assert lengths(kind.with_curve((1, 10.0), (2, 20.0)), [[1.0]]) == [1]


def test_of_equal_drafts_the_lower_row_wins_however_many_there_are(kind: BudgetKind) -> None:
    budget = kind.with_curve((203, 10.0), (1000, 1000.0))
    assert lengths(budget, [[0.5, 0.5]] * 200) == [3, 2] + [1] * 198


def test_the_first_list_decides_how_many_and_the_second_whose(kind: BudgetKind) -> None:
    budget = kind.with_curve(*TOY_CURVE)
    certain, hopeless = [1.0] * 5, [0.0] * 5
    assert lengths(budget, [hopeless, hopeless], [certain, certain]) == [1, 1]
    assert lengths(budget, [certain, certain], [hopeless, hopeless]) == [6, 6]
    assert lengths(budget, [certain, hopeless], [hopeless, certain]) == [1, 6]


def test_all_drafts_are_verified_without_a_curve(kind: BudgetKind) -> None:
    budget = kind.Budget()
    budget.record_step_time(2, 8, 10.0, 1.0)
    assert budget.slope_ms == 0.0
    assert lengths(budget, [[0.5, 0.0], [], [0.0]]) == [3, 1, 2]


def test_no_rows_and_rows_without_drafts_are_fine(kind: BudgetKind) -> None:
    budget = kind.with_curve(*TOY_CURVE)
    assert lengths(budget, []) == []
    assert lengths(budget, [[]]) == [1]
    assert lengths(budget, [[], [1.0, 1.0], []]) == [1, 3, 1]


def test_a_new_curve_forgets_the_slope_and_keeps_the_sampler_times(kind: BudgetKind) -> None:
    budget = kind.with_curve(*TOY_CURVE)
    for _ in range(10):
        budget.record_step_time(2, 8, 61.0, 3.0)
    assert (budget.slope_ms, budget.sampler_fallback_ms) == (5.0, 3.0)
    budget.set_step_time_curve(TOY_CURVE)
    assert (budget.slope_ms, budget.sampler_fallback_ms) == (0.0, 3.0)


BAD_CURVES = {
    "points is empty": (),
    r"points\[0\] has size 0": ((0, 1.0),),
    r"points\[0\] has size -3": ((-3, 1.0), (4, 1.0)),
    r"points\[1\] has size 0; sizes are at least 1": ((4, 1.0), (0, 1.0)),
    r"points\[0\] takes nan ms; ": ((4, math.nan), (3, 1.0)),
    r"points\[2\] has size 4 after 8": ((4, 1.0), (8, 1.0), (4, 1.0)),
    r"points\[1\] has size 4 after 4": ((4, 1.0), (4, 1.0)),
    r"points\[1\] takes nan ms": ((4, 1.0), (8, math.nan)),
    r"points\[0\] takes inf ms": ((4, math.inf), (8, 1.0)),
    r"points\[0\] takes 0(\.0)? ms": ((4, 0.0),),
    r"points\[0\] takes -1(\.0)? ms": ((4, -1.0),),
}


@pytest.mark.parametrize("message", BAD_CURVES)
def test_a_bad_curve_is_refused_and_the_old_one_stays(kind: BudgetKind, message: str) -> None:
    budget = kind.with_curve(*TOY_CURVE)
    with pytest.raises(ConfigError, match=message):
        budget.set_step_time_curve(BAD_CURVES[message])
    assert lengths(budget, [[0.95, 0.85, 0.6, 0.3, 0.1], [0.7, 0.4, 0.2, 0.1, 0.05]]) == [5, 3]


@pytest.mark.parametrize("points", [((4.5, 1.0),), (("4", 1.0),), ((4, "1.0"),), ((4, None),), ((4,),), 4])
def test_a_curve_of_other_types_is_refused(kind: BudgetKind, points: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        kind.Budget().set_step_time_curve(points)


BAD_STEPS = {
    "num_rows is 0": (0, 8, 1.0, 1.0),
    "graph_size is -1": (2, -1, 1.0, 1.0),
    "graph_size is 13": (2, 13, 1.0, 1.0),
    "forward_ms is nan": (2, 8, math.nan, 1.0),
    "forward_ms is inf": (2, 8, math.inf, 1.0),
    r"forward_ms is -0\.5": (2, 8, -0.5, 1.0),
    "sampler_ms is -inf": (2, 8, 1.0, -math.inf),
    "sampler_ms is nan": (2, 8, 1.0, math.nan),
}


@pytest.mark.parametrize("message", BAD_STEPS)
def test_a_bad_step_time_is_refused_and_teaches_nothing(kind: BudgetKind, message: str) -> None:
    budget = kind.with_curve(*TOY_CURVE)
    for _ in range(20):
        with pytest.raises(ValueError, match=message):
            budget.record_step_time(*BAD_STEPS[message])
    assert (budget.slope_ms, budget.sampler_fallback_ms) == (0.0, None)


BAD_SURVIVAL: dict[str, tuple[list[list[float]], list[list[float]]]] = {
    r"budget_survival\[1\]\[0\] is nan": ([[0.5], [math.nan]], [[0.5], [0.5]]),
    r"split_survival\[0\]\[1\] is nan": ([[0.5, 0.5]], [[0.5, math.nan]]),
    r"budget_survival\[0\]\[0\] is 1\.5": ([[1.5]], [[0.5]]),
    r"split_survival\[0\]\[0\] is -0\.25": ([[0.5]], [[-0.25]]),
    r"split_survival\[0\]\[0\] is inf": ([[0.5]], [[math.inf]]),
    r"budget_survival\[1\] goes from 0\.25 to 0\.5 at draft 2": ([[0.5], [0.5, 0.25, 0.5]], [[0.5], [0.5, 0.5, 0.5]]),
    "budget_survival has 1 rows and split_survival 2": ([[0.5]], [[0.5], [0.5]]),
    r"budget_survival\[1\] has 1 drafts and split_survival\[1\] 2": ([[], [0.5]], [[], [0.5, 0.5]]),
    "13 sequences are more than the largest graph of the curve holds, 12": ([[0.5]] * 13, [[0.5]] * 13),
}


@pytest.mark.parametrize("message", BAD_SURVIVAL)
def test_bad_survival_is_refused(kind: BudgetKind, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lengths(kind.with_curve(*TOY_CURVE), *BAD_SURVIVAL[message])


OTHER_ROWS: dict[str, Any] = {
    r"a float64 array of shape \(2,\)": np.zeros(2),
    r"a int32 array of shape \(2,\)": np.zeros(2, np.int32),
    r"a float32 array of shape \(1, 2\)": np.zeros((1, 2), np.float32),
    "a list": [0.5, 0.5],
    "a NoneType": None,
}


@pytest.mark.parametrize("found", OTHER_ROWS)
def test_a_row_that_is_no_float32_vector_is_refused(kind: BudgetKind, found: str) -> None:
    message = rf"budget_survival\[0\] is {found}; an array of float32 with one dimension is needed"
    with pytest.raises(ValueError, match=message):
        kind.Budget().verify_lengths([OTHER_ROWS[found]], float_rows([[0.5, 0.5]]))


def test_a_row_may_be_a_column_of_a_larger_array(kind: BudgetKind) -> None:
    survival = np.array([[0.95, 0.7], [0.85, 0.4], [0.6, 0.2], [0.3, 0.1], [0.1, 0.05]], np.float32)
    rows = [survival[:, 0], survival[:, 1]]
    assert kind.with_curve(*TOY_CURVE).verify_lengths(rows, rows).tolist() == [5, 3]


@pytest.mark.parametrize("first_seed", range(0, 600, 100))
def test_random_steps_are_decided_alike(first_seed: int) -> None:
    """A tenth of the soak run."""
    for seed in range(first_seed, first_seed + 100):
        answers = decide_random_step(seed)
        assert answers["numpy"] == answers["native"], seed


@pytest.mark.parametrize("num_rows", [97, 257, 512, 1024])
def test_large_steps_are_decided_alike(num_rows: int) -> None:
    """Sizes at which the C++ budget sorts by digits."""
    answers = decide_random_step(num_rows, num_rows)
    assert answers["numpy"] == answers["native"]


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    """Few distinct values, so that ties, zeros, ones, empty rows and small graphs are common."""
    survival = st.sampled_from([0.0, 2.0**-26, 0.1, 0.25, 0.3, 0.5, 0.7, 0.9, 1.0]) | st.floats(0, 1, width=32)
    widths = draw(st.lists(st.integers(0, 6), max_size=12))
    rows = [
        [sorted(draw(st.lists(survival, min_size=width, max_size=width)), reverse=True) for width in widths]
        for _ in range(2)
    ]
    sizes = sorted(draw(st.sets(st.integers(1, 90), min_size=1, max_size=8)))
    times = draw(st.lists(st.floats(0.5, 40) | st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    some_ms = st.sampled_from([0.0, 0.5, 1.0, 7.25]) | st.floats(0, 50)
    updates = st.lists(st.tuples(st.integers(1, 12), st.integers(1, sizes[-1]), some_ms, some_ms), max_size=4)
    return {
        "rows": rows,
        "curve": list(zip(sizes, times, strict=True)),
        "updates": draw(updates) * draw(st.sampled_from([1, 3, 12])),
    }


@settings(max_examples=300, deadline=None)
@given(steps())
def test_both_languages_decide_alike(step: dict[str, Any]) -> None:
    answers = []
    for kind in BUDGETS.values():
        budget = kind.with_curve(*step["curve"])
        for update in step["updates"]:
            budget.record_step_time(*update)
        try:
            chosen: Any = lengths(budget, *step["rows"])
        except ValueError as error:
            chosen = str(error)
        answers.append((chosen, budget.slope_ms, budget.sampler_fallback_ms))
    assert answers[0] == answers[1]
