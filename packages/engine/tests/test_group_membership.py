"""Groups whose ranks are threads of one process: how they meet, refuse bad options, and leave."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from thalweg.engine.communicator import GlooCommunicator
from thalweg.interfaces import ConfigError, InvariantError, PeerDiedError

ONE = np.array([1], np.int32)


def in_threads(size: int, work: Callable[[int, Any], Any]) -> list[Any]:
    """The results of `work(rank, store)` of every rank; the first error is raised."""
    store = dist.HashStore()
    with ThreadPoolExecutor(size) as pool:
        return [future.result(timeout=60) for future in [pool.submit(work, rank, store) for rank in range(size)]]


def join_group(size: int, **options: Any) -> list[GlooCommunicator]:
    return in_threads(size, lambda rank, store: GlooCommunicator(store, rank, size, **options))


def failure_of(call: Callable[[], Any]) -> PeerDiedError:
    with pytest.raises(PeerDiedError) as caught:
        call()
    return caught.value


def test_a_lone_rank_gets_copies_of_its_own_values() -> None:
    with GlooCommunicator(dist.HashStore(), 0, 1) as communicator:
        for reduce in (communicator.all_reduce_min, communicator.all_reduce_max):
            result = reduce(ONE)
            assert result.tolist() == [1]
            assert not np.shares_memory(result, ONE)
        assert (communicator.rank, communicator.size) == (0, 1)


def test_the_values_of_the_caller_stay_as_they_are() -> None:
    def work(rank: int, store: Any) -> list[list[int]]:
        with GlooCommunicator(store, rank, 2) as communicator:
            values = np.array([rank, -rank, 7, 9], np.int32)[::2]
            reduced = communicator.all_reduce_max(values)
            return [values.tolist(), reduced.tolist()]

    assert in_threads(2, work) == [[[0, 7], [1, 7]], [[1, 7], [1, 7]]]


def test_two_groups_may_share_a_store_under_different_names() -> None:
    def work(rank: int, store: Any) -> list[int]:
        with (
            GlooCommunicator(store, rank, 2, name="a") as first,
            GlooCommunicator(store, 1 - rank, 2, name="b") as second,
        ):
            return [*first.all_reduce_max(ONE * rank), *second.all_reduce_min(ONE * second.rank)]

    assert in_threads(2, work) == [[1, 0], [1, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size is 0; it must be an integer from 1 to 65536"),
        ({"size": 1 << 70}, "size is 1180591620717411303424"),
        ({"host": "192.0.2.1"}, "host is '192.0.2.1'; it must be an address of this machine"),
        ({"host": "name.invalid"}, "host is 'name.invalid'"),
        ({"host": None}, "host is None"),
        ({"size": True}, "size is True"),
        ({"rank": 2}, "rank is 2; it must be an integer from 0 to 1"),
        ({"rank": -1}, "rank is -1"),
        ({"timeout_s": 0}, "timeout_s is 0; it must be a number of seconds from 0.1 to"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"timeout_s": float("inf")}, "timeout_s is inf"),
        ({"timeout_s": "5"}, "timeout_s is '5'"),
        ({"timeout_s": True}, "timeout_s is True"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], message: str) -> None:
    arguments = {"rank": 0, "size": 2} | options
    with pytest.raises(ConfigError, match=message):
        GlooCommunicator(dist.HashStore(), **arguments)


@pytest.mark.parametrize("values", [np.zeros(1, np.int64), np.zeros(1, np.float32), [1]])
def test_only_int32_arrays_are_reduced(values: Any) -> None:
    with GlooCommunicator(dist.HashStore(), 0, 1) as communicator, pytest.raises(ValueError, match="int32 array"):
        communicator.all_reduce_max(values)


def test_no_more_values_are_reduced_than_fit_a_message() -> None:
    def work(rank: int, store: Any) -> list[list[int]]:
        with GlooCommunicator(store, rank, 2) as communicator:
            with pytest.raises(ValueError, match="values has 31 elements; at most 30"):
                communicator.all_reduce_max(np.zeros(31, np.int32))
            most = communicator.all_reduce_max(np.full((5, 6), rank, np.int32))
            none = communicator.all_reduce_min(np.zeros((0, 3), np.int32))
            return [list(most.shape), list(none.shape), [int(most.min())]]

    assert in_threads(2, work) == [[[5, 6], [0, 3], [1]]] * 2


@pytest.mark.parametrize(
    ("reduce", "text"),
    [
        (lambda c: c.all_reduce_min(ONE), "rank 0 number 1, the maximum of 1; rank 1 number 1, the minimum of 1"),
        (lambda c: c.all_reduce_max(np.zeros(3, np.int32)), "rank 1 number 1, the maximum of 3"),
    ],
)
def test_ranks_that_make_different_reductions_are_told_which(
    reduce: Callable[[GlooCommunicator], Any], text: str
) -> None:
    def work(rank: int, store: Any) -> list[str]:
        with GlooCommunicator(store, rank, 2) as communicator:
            messages = []
            for _ in range(2):
                with pytest.raises(InvariantError) as caught:
                    reduce(communicator) if rank else communicator.all_reduce_max(ONE)
                messages.append(str(caught.value))
            return messages

    for messages in in_threads(2, work):
        assert messages[0] == messages[1]
        assert messages[0].startswith("the ranks of group 'data' make different reductions: rank 0 number 1")
        assert text in messages[0]


def test_ranks_that_do_not_come_are_named() -> None:
    error = failure_of(lambda: GlooCommunicator(dist.HashStore(), 1, 4, timeout_s=0.2))
    assert "of 4 ranks these did not come within 0.2 s: 0, 2, 3" in str(error)
    assert error.ranks == (0, 2, 3)


def test_two_ranks_with_one_number_are_refused() -> None:
    store = dist.HashStore()
    failure_of(lambda: GlooCommunicator(store, 0, 2, timeout_s=0.2))
    with pytest.raises(ConfigError, match="rank 0 has come through this store before"):
        GlooCommunicator(store, 0, 2, timeout_s=0.2)


def test_ranks_that_disagree_about_the_size_are_refused() -> None:
    def work(rank: int, store: Any) -> str:
        try:
            GlooCommunicator(store, rank, 2 if rank else 3, timeout_s=0.5).close()
        except (ConfigError, PeerDiedError) as error:
            return str(error)
        return "joined"

    messages = in_threads(2, work)
    assert "did not come" in messages[0]
    assert messages[1] == "rank 1 has size 2, but rank 0 has size 3"


def test_a_rank_that_cannot_go_on_tells_the_others_why() -> None:
    first, second, third = join_group(3, timeout_s=20)
    started = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(failure_of, lambda: first.all_reduce_max(ONE))
        time.sleep(0.1)
        third.fail("the device is lost")
        told = waiting.result(timeout=15)
    later = failure_of(lambda: second.all_reduce_max(ONE))
    own = failure_of(lambda: third.all_reduce_max(ONE))
    assert time.monotonic() - started < 8  # nobody waited for the timeout
    for error in (told, later, own):
        assert "rank 2 cannot go on: the device is lost (group 'data'" in str(error)
        assert error.ranks == (2,)
    for communicator in (first, second, third):
        communicator.close()
    assert time.monotonic() - started < 12  # taking the group apart did not wait for it either


def test_a_rank_that_left_is_named() -> None:
    first, second = join_group(2, timeout_s=20)
    second.close()
    second.close()
    assert "rank 1 died or left" in str(failure_of(lambda: first.all_reduce_max(ONE)))
    assert "rank 1 has closed its communicator" in str(failure_of(lambda: second.all_reduce_max(ONE)))
    first.close()


@pytest.mark.parametrize("noise", [b"", b"hello\n", b"[1]\n", b'{"token": "guess", "kind": "verdict", "ranks": [0]}\n'])
def test_a_stranger_on_the_port_changes_nothing(noise: bytes) -> None:
    first, second = join_group(2, timeout_s=20)
    with socket.create_connection(first._roll_call.endpoint) as stranger:
        stranger.sendall(noise)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(100) == b""
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda communicator: communicator.all_reduce_max(ONE).tolist(), (first, second))
        assert list(results) == [[1], [1]]
    first.close()
    second.close()


def test_a_closed_group_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    for communicator in join_group(2):
        communicator.close()
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before
