"""Reductions between processes, and what the others learn when one of them is gone."""

import signal
import socket
import time

import numpy as np
import pytest
from rank_testing.launch import Ended, Launcher
from rank_testing.reductions import reduce_random, reduce_until_it_fails

pytestmark = pytest.mark.distributed

TIMEOUT_S = 1.5
SLACK_S = 1.5
"""What a busy machine may add: the limit is what the communicator promises, the slack is the scheduler's."""


def check_survivors(survivors: list[Ended], missing: list[int], text: str) -> None:
    for survivor in survivors:
        assert survivor.exit_code == 0, survivor.error
        assert survivor.result["ranks"] == missing
        assert text in survivor.result["message"]
        assert "group 'data', reduction " in survivor.result["message"]
        assert survivor.result["again"] == survivor.result["message"]
        assert survivor.result["waited"] < TIMEOUT_S + SLACK_S
        assert survivor.result["closed"] < TIMEOUT_S + SLACK_S


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_rank_gets_the_same_extremes(launcher: Launcher, size: int) -> None:
    rounds = 40
    launcher.start(reduce_random, size, rounds=rounds)
    results = launcher.results()
    generators = [np.random.default_rng(rank) for rank in range(size)]
    for number in range(rounds):
        values = [g.integers(-(2**31), 2**31, 1 + number % 4, dtype=np.int32) for g in generators]
        expected = np.min(values, axis=0) if number % 2 else np.max(values, axis=0)
        assert [result[number] for result in results] == [expected.tolist()] * size


@pytest.mark.parametrize(("size", "victim"), [(2, 1), (4, 0), (4, 2)])
def test_a_killed_rank_is_named_by_all_others_at_once(launcher: Launcher, size: int, victim: int) -> None:
    launcher.start(reduce_until_it_fails, size, timeout_s=60.0)
    launcher.wait_for("running")
    killed = time.monotonic()
    launcher.send(victim, signal.SIGKILL)
    survivors = launcher.join(*(rank for rank in range(size) if rank != victim))
    assert time.monotonic() - killed < 10  # far below the timeout
    check_survivors(survivors, [victim], f"rank {victim} died or left")


@pytest.mark.parametrize(("size", "victim"), [(2, 0), (4, 3)])
def test_a_stopped_rank_is_named_by_all_others_within_the_timeout(launcher: Launcher, size: int, victim: int) -> None:
    launcher.start(reduce_until_it_fails, size, timeout_s=TIMEOUT_S)
    launcher.wait_for("running")
    launcher.send(victim, signal.SIGSTOP)
    survivors = launcher.join(*(rank for rank in range(size) if rank != victim))
    check_survivors(survivors, [victim], f"rank {victim} did not answer within {TIMEOUT_S:g} s")
    assert all(survivor.result["waited"] > 0.7 * TIMEOUT_S for survivor in survivors)


def test_the_rank_that_hosts_the_store_can_be_the_one_that_dies(launcher: Launcher) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher.start(reduce_until_it_fails, 3, timeout_s=20.0, port=port)
    launcher.wait_for("running")
    launcher.send(0, signal.SIGKILL)
    check_survivors(launcher.join(1, 2), [0], "rank 0 died or left")


def test_two_missing_ranks_are_both_named(launcher: Launcher) -> None:
    launcher.start(reduce_until_it_fails, 4, timeout_s=TIMEOUT_S)
    launcher.wait_for("running")
    launcher.send(1, signal.SIGSTOP)
    launcher.send(3, signal.SIGSTOP)
    check_survivors(launcher.join(0, 2), [1, 3], "ranks 1, 3 did not answer")


def test_a_rank_that_lives_but_does_not_come_is_named_and_learns_it(launcher: Launcher) -> None:
    launcher.start(reduce_until_it_fails, 3, timeout_s=TIMEOUT_S, asleep=1)
    first, late, last = launcher.join()
    check_survivors([first, last], [1], f"rank 1 did not come within {TIMEOUT_S:g} s, although alive")
    check_survivors([late], [1], "the other ranks gave up on rank 1, this one")
