"""Thousands of random walks, and of steps of many walks."""

from __future__ import annotations

import pytest
from matcher_testing.steps import check_steps
from matcher_testing.walks import walk_and_go_back

from thalweg.structured import BatchFiller


@pytest.mark.parametrize("first_seed", range(1000, 2000, 100))
def test_random_walks_restore_every_earlier_state(first_seed: int) -> None:
    assert sum(walk_and_go_back(seed, num_moves=60) for seed in range(first_seed, first_seed + 100)) > 100


@pytest.mark.parametrize("first_seed", range(1000, 2000, 100))
def test_random_steps_fill_what_the_definition_says(first_seed: int) -> None:
    filler = BatchFiller()
    assert sum(check_steps(seed, filler, 6) for seed in range(first_seed, first_seed + 100)) > 1000
