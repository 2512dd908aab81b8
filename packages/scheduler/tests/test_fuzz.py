"""Random workloads: both cores in lock step, and the rules that must hold after every call.

The soak runs ten times as many. A failure names its seed and the command that repeats it.
"""

import pytest
from scheduler_testing.lockstep import run_both_ways, run_seeds

RUNS = 1000
RUNS_PER_TEST = 50


@pytest.mark.parametrize("first", range(0, RUNS, RUNS_PER_TEST))
def test_random_workloads_neither_leak_nor_stall_nor_lose_a_record(first: int) -> None:
    run_seeds(range(first, first + RUNS_PER_TEST))


def test_asynchronous_and_synchronous_runs_of_a_workload_give_equal_outputs() -> None:
    assert run_both_ways(range(2000, 2030)) > 50


def test_both_cores_keep_the_old_rules_alike() -> None:
    run_seeds(range(50), "reference")
