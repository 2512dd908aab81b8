"""Random workloads: both cores in lock step, and the rules that must hold after every step of each."""

import pytest
from scheduler_testing.cores import load_core
from scheduler_testing.lockstep import Lockstep
from scheduler_testing.workload import describe, make_workload

RUNS = 500
RUNS_PER_TEST = 50


def run_seeds(core_names: tuple[str, ...], seeds: range, policy: str) -> None:
    cores = [load_core(name) for name in core_names]
    for seed in seeds:
        workload = make_workload(seed, policy)
        try:
            Lockstep(cores, workload).run()
        except Exception as error:
            error.add_note(f"seed {seed}, policy {policy}: {describe(workload)}")
            raise


@pytest.mark.parametrize("first", range(0, RUNS, RUNS_PER_TEST))
@pytest.mark.parametrize("cores", [("reference",), ("reference", "native")], ids="-".join)
def test_random_workloads_neither_leak_nor_stall_nor_lose_a_record(cores: tuple[str, ...], first: int) -> None:
    run_seeds(cores, range(first, first + RUNS_PER_TEST), "default")
