"""Six thousand random steps decided in both languages."""

import pytest
from scheduler_testing.budgets import decide_random_step


@pytest.mark.parametrize("first_seed", range(0, 6000, 500))
def test_random_steps_are_decided_alike(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 500):
        answers = decide_random_step(seed)
        assert answers["numpy"] == answers["native"], seed
