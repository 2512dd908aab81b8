"""The law of texts with drafts from 150,000 seeds each, and what it looks like when a rule is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drafts_testing import budgets
from drafts_testing.bench import Setup
from drafts_testing.law_cases import BEST_ALONE, FIXED, SOAK_ONLY, TWICE_TOLD, VARYING
from drafts_testing.sampling_runs import LawRun

NUM_SEEDS = 150_000
FIRST_SEED = 1_000_000
CASES = FIXED | VARYING | SOAK_ONLY
LEAST_P = 0.001


@pytest.mark.parametrize("case", CASES)
def test_texts_follow_the_law(case: str) -> None:
    result, _ = replace(CASES[case], first_seed=FIRST_SEED).test(NUM_SEEDS)
    print(f"{case}: {result}")
    assert result.p_value > LEAST_P, str(result)


@pytest.mark.parametrize("setup", [TWICE_TOLD, BEST_ALONE], ids=["a telling drafter", "exact confidences"])
@pytest.mark.parametrize("is_async", [False, True])
def test_draft_positions_that_come_again_bias_the_text(setup: Setup, is_async: bool) -> None:
    """The rule of the traced system. Confidences that are exact tell little, but enough."""
    broken = replace(setup, draft_positions="absolute", is_async=is_async)
    result, _ = LawRun(broken, num_tokens=5, first_seed=FIRST_SEED).test(NUM_SEEDS)
    print(result)
    assert result.p_value < LEAST_P, str(result)


def test_a_budget_that_sees_the_newest_confidences_biases_the_text() -> None:
    broken = replace(TWICE_TOLD, budget=lambda: budgets.Peeking(budgets.told_by(2)))
    result, _ = LawRun(broken, num_tokens=5, first_seed=FIRST_SEED).test(NUM_SEEDS)
    print(result)
    assert result.p_value < 1e-10, str(result)
