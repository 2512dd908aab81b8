"""Random models with random drafters, hundreds of steps each, compared with the run token by token."""

from __future__ import annotations

import pytest

from rollback_testing.lives import check_random_model

NUM_MODELS = 60
STEPS = 150
LENGTHS = (60, 190)


@pytest.mark.parametrize("seed", range(1000, 1000 + NUM_MODELS))
def test_random_models(seed: int) -> None:
    seen = check_random_model(seed, STEPS, LENGTHS)
    assert min(seen["chunks"], seen["rounds"], seen["forked"], seen["preempted"]) > 0, seen
