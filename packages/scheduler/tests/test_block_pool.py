"""The pool of blocks and of state slots."""

import json
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_testing.cores import CORE_NAMES, Core, load_core

from thalweg.interfaces import BlockAllocator, CapacityError, ConfigError, Fit
from thalweg.scheduler.reference import block_pool

GOLDEN = Path(__file__).parent / "golden"


def test_recorded_operations_give_the_recorded_ids(core: Core) -> None:
    """golden/block_manager.json: every id list, every free count and the final free order."""
    for case in json.loads((GOLDEN / "block_manager.json").read_text()):
        pool = core.BlockPool(case["num_blocks"])
        for op in case["ops"]:
            if op["op"] == "alloc":
                assert pool.allocate(op["n"]) == op["ids"]
            elif op["op"] == "free":
                pool.release(op["ids"])
            elif op["op"] == "pin":
                pool.pin(op["ids"])
            elif op["op"] == "can_allocate_false":
                assert pool.can_allocate(op["n"]) != Fit.OK
            else:
                assert op["op"] == "final_free_order"
                assert pool.free_ids() == op["order"]
            assert pool.num_free == op.get("free", pool.num_free)


def test_recorded_answers_of_can_allocate_are_repeated(core: Core) -> None:
    """golden/block_manager_trace.json: [op, arguments, result, free blocks afterwards]."""
    trace = json.loads((GOLDEN / "block_manager_trace.json").read_text())
    pool = core.BlockPool(trace["num_blocks"])
    for op, (argument,), result, num_free in trace["trace"]:
        if op == "alloc":
            assert pool.allocate(argument) == result
        elif op == "can":
            assert pool.can_allocate(argument) == Fit[result]
        else:
            (pool.pin if op == "pin" else pool.release)(argument)
        assert pool.num_free == num_free


def test_a_pool_is_a_block_allocator(core: Core) -> None:
    assert isinstance(core.BlockPool(4), BlockAllocator)
    assert core.BlockPool(4).capacity == 4


def test_a_request_for_every_id_including_the_null_one_can_never_be_served(core: Core) -> None:
    pool = core.BlockPool(4)
    assert pool.can_allocate(4) == Fit.NEVER
    assert pool.can_allocate(3) == Fit.OK
    pool.allocate(1)
    assert pool.can_allocate(3) == Fit.LATER
    assert pool.can_allocate(0) == Fit.OK
    assert pool.allocate(0) == []


def test_a_shortage_names_both_numbers_and_takes_nothing(core: Core) -> None:
    pool = core.BlockPool(4)
    with pytest.raises(CapacityError, match=r"4.*3"):
        pool.allocate(4)
    assert pool.free_ids() == [1, 2, 3]


@pytest.mark.parametrize("bad", [0, -1, 5, 1 << 40])
@pytest.mark.parametrize("call", ["release", "pin"])
def test_an_id_outside_the_pool_is_refused_and_changes_nothing(core: Core, call: str, bad: int) -> None:
    pool = core.BlockPool(5)
    pool.allocate(2)
    with pytest.raises((ValueError, TypeError)):
        getattr(pool, call)([1, bad])
    assert pool.free_ids() == [3, 4]
    pool.release([1])
    assert pool.num_free == 3


@pytest.mark.parametrize("ids", [[3], [1, 3], [1, 1]])
def test_releasing_more_often_than_held_is_refused_and_changes_nothing(core: Core, ids: list[int]) -> None:
    pool = core.BlockPool(5)
    pool.allocate(2)
    with pytest.raises(ValueError, match=r"block [13]"):
        pool.release(ids)
    assert pool.free_ids() == [3, 4]


def test_a_free_id_cannot_be_pinned(core: Core) -> None:
    pool = core.BlockPool(5)
    pool.allocate(2)
    with pytest.raises(CapacityError, match="block 3"):
        pool.pin([1, 3])
    pool.release([1])
    assert pool.num_free == 3


@pytest.mark.parametrize("count", [-1, -(1 << 40)])
def test_a_negative_count_is_refused(core: Core, count: int) -> None:
    pool = core.BlockPool(5)
    with pytest.raises((ValueError, TypeError)):
        pool.allocate(count)
    with pytest.raises((ValueError, TypeError)):
        pool.can_allocate(count)
    assert pool.num_free == 4


@pytest.mark.parametrize("capacity", [0, -3])
def test_a_pool_without_ids_is_refused(core: Core, capacity: int) -> None:
    with pytest.raises(ConfigError, match=str(capacity)):
        core.BlockPool(capacity)


@pytest.mark.parametrize("name", CORE_NAMES)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ids_are_never_lost_or_handed_out_twice(name: str, data: st.DataObject) -> None:
    capacity = data.draw(st.integers(1, 12))
    pool = load_core(name).BlockPool(capacity)
    holders: Counter[int] = Counter()
    free = list(range(1, capacity))
    for _ in range(data.draw(st.integers(0, 30))):
        held = sorted(holders.elements())
        action = data.draw(st.sampled_from(["allocate", "release", "pin"]))
        if action == "allocate":
            ids = pool.allocate(data.draw(st.integers(0, len(free))))
            assert ids == free[: len(ids)]
            del free[: len(ids)]
            holders.update(ids)
        elif held:
            ids = data.draw(st.lists(st.sampled_from(sorted(set(held))), max_size=4, unique=True))
            if action == "pin":
                pool.pin(ids)
                holders.update(ids)
            else:
                pool.release(ids)
                holders.subtract(ids)
                free += [block for block in reversed(ids) if holders[block] == 0]
        assert pool.free_ids() == free
        assert pool.num_free == len(free)


def test_threads_can_share_a_pool(core: Core) -> None:
    pool = core.BlockPool(41)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(200):
                ids = pool.allocate(5)
                pool.pin(ids)
                pool.release(ids)
                pool.release(ids)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(pool.free_ids()) == list(range(1, 41))


def test_a_pool_that_another_thread_keeps_to_itself_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the plain core; the lock of the C++ core cannot be held from here."""
    monkeypatch.setattr(block_pool, "LOCK_TIMEOUT_S", 0.01)
    pool = block_pool.BlockPool(5)
    with pool._locked(), pytest.raises(TimeoutError, match="another thread"):
        pool.allocate(1)
    assert pool.allocate(1) == [1]
