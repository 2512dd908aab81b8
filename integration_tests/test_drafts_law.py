"""Above temperature 0 the first tokens follow the target's law exactly, whoever drafts and however much is verified.

The first decode step, with its placeholder drafts, is among them. Chi-square of the joint law; the soak runs draw more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drafts_testing.drafters import KnowingDrafter, even
from drafts_testing.law import ChiSquare, upper_gamma
from drafts_testing.law_cases import FIXED, TWICE_TOLD, VARYING
from drafts_testing.sampling_runs import LawRun

LEAST_P = 0.001


@pytest.mark.parametrize("case", FIXED)
def test_texts_of_fixed_length_steps_follow_the_law(case: str) -> None:
    check(FIXED[case])


@pytest.mark.parametrize("case", VARYING)
def test_texts_of_steps_whose_length_varies_follow_the_law(case: str) -> None:
    check(VARYING[case])


def check(run: LawRun) -> None:
    result, (num_verified, num_accepted) = run.test()
    assert result.p_value > LEAST_P, str(result)
    if run.setup.draft_length:
        assert num_verified > 0
        assert num_accepted > 0


def test_draft_positions_that_come_again_bias_the_text() -> None:
    """The rule of the traced system, with a budget that confidences decide: the test above would not pass."""
    result, _ = LawRun(replace(TWICE_TOLD, draft_positions="absolute"), num_tokens=5).test()
    assert result.is_possible
    assert result.p_value < 1e-10, str(result)


def test_confidences_that_know_their_drafts_bias_the_text() -> None:
    """The split goes by them, so the tests of lengths that are shared out could fail."""
    run = VARYING["shared out on the device"]
    broken = replace(run.setup, drafter_type=KnowingDrafter, confide=even)
    result, _ = replace(run, setup=broken, num_seeds=4096).test()
    assert result.p_value < 1e-10, str(result)


def test_chi_square_knows_its_tables() -> None:
    for degrees, statistic, p_value in ((1, 3.841459, 0.05), (10, 29.5883, 0.001), (696, 696.0, 0.4929), (2, 0.0, 1.0)):
        assert upper_gamma(degrees / 2, statistic / 2) == pytest.approx(p_value, rel=1e-3)


def test_chi_square_sees_a_wrong_law_and_impossible_texts() -> None:
    law = np.array([0.5, 0.3, 0.2, 0.0])
    random = np.random.default_rng(0)
    assert ChiSquare(random.multinomial(10_000, law), law).p_value > LEAST_P
    assert ChiSquare(random.multinomial(10_000, [0.47, 0.33, 0.2, 0.0]), law).p_value < 1e-6
    assert ChiSquare(np.array([5000, 3000, 1999, 1]), law).p_value == 0
