"""Thousands of random walks, and of steps of many walks."""

from __future__ import annotations

import pytest
from matcher_testing.walks import walk_and_go_back


@pytest.mark.parametrize("first_seed", range(1000, 4000, 100))
@pytest.mark.parametrize("max_rollback", [8, 64])
def test_random_walks_restore_every_earlier_state(first_seed: int, max_rollback: int) -> None:
    assert sum(walk_and_go_back(seed, 60, max_rollback) for seed in range(first_seed, first_seed + 100)) > 100
