"""The workloads of test_fuzz.py, ten times as many and none of the same: `nox -s soak-scheduler`."""

import pytest
from scheduler_testing.lockstep import run_both_ways, run_seeds

RUNS = 10_000
RUNS_PER_TEST = 250
FIRST_SEED = 100_000


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + RUNS, RUNS_PER_TEST))
def test_thousands_of_random_workloads_neither_leak_nor_stall_nor_lose_a_record(first: int) -> None:
    run_seeds(range(first, first + RUNS_PER_TEST))


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + 500, 100))
def test_hundreds_of_workloads_give_equal_outputs_asynchronously_and_synchronously(first: int) -> None:
    assert run_both_ways(range(first, first + 100)) > 200


def test_hundreds_of_workloads_under_the_old_rules_are_equal_in_both_cores() -> None:
    run_seeds(range(FIRST_SEED, FIRST_SEED + 500), "reference")
