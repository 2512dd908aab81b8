"""Other threads use the two pools while the scheduler plans."""

import threading

import pytest
from scheduler_testing.async_driver import AsyncDriver, async_config, output_of
from scheduler_testing.cores import Core

from thalweg.interfaces import CapacityError


@pytest.mark.parametrize("draft_length", [0, 2])
def test_a_store_may_take_and_pin_memory_at_any_time(core: Core, draft_length: int) -> None:
    driver = AsyncDriver(core, async_config(), num_blocks=20, block_size=8, draft_length=draft_length)
    pools = (driver.scheduler.blocks, driver.scheduler.state_slots)
    stop = threading.Event()
    failures: list[BaseException] = []

    def use_pools() -> None:
        try:
            while not stop.is_set():
                for pool in pools:
                    try:
                        ids = pool.allocate(1)
                    except CapacityError:
                        continue
                    pool.pin(ids)
                    pool.release(ids)
                    pool.release(ids)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use_pools) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for length in (30, 7, 50, 12, 90, 25):
            driver.add(length, max_tokens=20, accept=(0, 2, 1))
        steps = driver.drain()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    for sequence_id in range(6):
        assert output_of(steps, sequence_id) == [100 + index for index in range(20)]
    assert [pool.num_free for pool in pools] == [19, 10]
