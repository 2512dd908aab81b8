"""Random workloads: both cores in lock step, and the rules that must hold after every step."""

import pytest
from scheduler_testing.lockstep import run_seeds

RUNS = 1000
RUNS_PER_TEST = 50


@pytest.mark.parametrize("first", range(0, RUNS, RUNS_PER_TEST))
def test_random_workloads_neither_leak_nor_stall_nor_lose_a_record(first: int) -> None:
    run_seeds(range(first, first + RUNS_PER_TEST))


def test_both_cores_keep_the_old_rules_alike() -> None:
    run_seeds(range(50), "reference")
