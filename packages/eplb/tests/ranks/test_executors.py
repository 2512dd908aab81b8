"""The parts of the executors that need no other process."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist

from thalweg.eplb.executors import LiveTables, PointToPoint, Rearranger, SharedMemory, StoreChannel, SymmetricMemory
from thalweg.eplb.executors.mirrors import as_layer, mirror_bytes
from thalweg.eplb.placement import Placement
from thalweg.interfaces import BackendUnavailableError, ConfigError, InvariantError, PeerDiedError

OLD = Placement.from_slots(np.array([[0, 1, 0], [0, 1, 1]], np.int32), 1, 2)
NEW = Placement.from_slots(np.array([[1, 0, 1], [0, 1, 1]], np.int32), 1, 2)


def channel(rank: int = 0, size: int = 1, name: str = "all", store: object = None) -> StoreChannel:
    return StoreChannel(store or dist.HashStore(), rank, size, timeout_s=0.2, name=name)


class NoTransport:
    """For a single rank, which has everything already."""

    def fetch(self, plan: object, weights: object, staging: object) -> None:
        pass


def make(weights: list[list[torch.Tensor]], placement: Placement = OLD) -> Rearranger:
    return Rearranger(weights, placement, NoTransport(), channel())


def as_arrays(tables: LiveTables) -> list[np.ndarray]:
    live = (tables.logical_of_physical, tables.physical_of_logical, tables.num_copies)
    return [table.numpy() for table in live]


def rows(placement: Placement) -> list[list[torch.Tensor]]:
    return [[torch.tensor(layer)[:, None] * torch.ones(3)] for layer in placement.logical_of_physical]


def test_a_single_rank_only_copies_and_layers_that_stay_are_not_touched() -> None:
    weights = rows(OLD)
    rearranger = make(weights)
    rearranger.start(NEW)
    with pytest.raises(InvariantError, match="experts are moving"):
        rearranger.start(OLD)
    switched = []
    while rearranger.is_moving:
        switched += rearranger.advance()
    assert switched == [0]
    assert torch.equal(weights[0][0], rows(NEW)[0][0])
    assert rearranger.placement.equals(NEW)
    assert rearranger.expert_bytes == 3 * 4
    expected = NEW.logical_of_physical, NEW.physical_of_logical, NEW.copies()
    assert all(map(np.array_equal, as_arrays(rearranger.tables), expected))
    rearranger.start(NEW)
    assert not rearranger.is_moving
    assert rearranger.advance() == []


LAYERS = 5


class Lost:
    """A communicator whose other rank never stages a layer, and is missed once `is_lost`."""

    rank, size, is_lost, num_staged = 0, 1, False, 0

    def all_reduce_min(self, values: np.ndarray) -> np.ndarray:
        if self.is_lost:
            raise PeerDiedError("rank 7 is gone", (7,))
        self.num_staged = int(values[0])
        return np.array([0, values[1]], np.int32)

    def all_reduce_max(self, values: np.ndarray) -> np.ndarray:
        return values


def start_a_move(communicator: Lost) -> tuple[Rearranger, set[threading.Thread]]:
    """A rearranger with more layers to move than it stages ahead, and its thread, which waits for a switch."""
    old, new = (Placement.from_slots(np.array([row] * LAYERS, np.int32), 1, 2) for row in ([0, 1, 0], [1, 0, 1]))
    rearranger = Rearranger(rows(old), old, NoTransport(), communicator)
    others = set(threading.enumerate())
    rearranger.start(new)
    threads = set(threading.enumerate()) - others
    while communicator.num_staged < 2:
        assert rearranger.advance() == []
    assert all(thread.is_alive() for thread in threads)
    return rearranger, threads


def assert_ended(threads: set[threading.Thread]) -> None:
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_the_thread_that_stages_ends_when_a_rank_is_lost() -> None:
    communicator = Lost()
    rearranger, threads = start_a_move(communicator)
    assert threads
    communicator.is_lost = True
    for _ in range(2):
        with pytest.raises(PeerDiedError, match="rank 7 is gone"):
            rearranger.advance()
    assert_ended(threads)
    with pytest.raises(PeerDiedError, match="rank 7 is gone"):
        rearranger.start(rearranger.placement)


def test_the_thread_that_stages_ends_when_the_rearranger_is_closed() -> None:
    rearranger, threads = start_a_move(Lost())
    for _ in range(2):
        rearranger.close()
    assert_ended(threads)
    for call in (rearranger.advance, lambda: rearranger.start(rearranger.placement)):
        with pytest.raises(InvariantError, match="this rearranger was closed; no more experts move"):
            call()
    assert rearranger.tables.logical_of_physical.tolist() == [[0, 1, 0]] * LAYERS


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="weights has 1 layers; the placement has 2"):
        make(rows(OLD)[:1])
    with pytest.raises(ConfigError, match="layer 1 differ from those of layer 0"):
        make([rows(OLD)[0], [torch.zeros(3, 4)]])
    with pytest.raises(ConfigError, match=r"tensor 0 of layer 0 is \(2, 3\); it must be contiguous, \[3 slots"):
        make([[torch.zeros(2, 3)]] * 2)
    with pytest.raises(ConfigError, match=r"it must be contiguous"):
        make([[torch.zeros(4, 3).T]] * 2)
    with pytest.raises(ConfigError, match="num_slots of one placement is 3 and of the other 2"):
        make(rows(OLD)).start(Placement.initial(2, 2, 2, 1))
    two_ranks = Placement.initial(1, 2, 6, 2)
    with pytest.raises(ConfigError, match="the placement is for 2 ranks; the communicator has 1"):
        make([[torch.zeros(3, 1)]], two_ranks)


def test_a_channel_names_who_did_not_come_and_stays_broken() -> None:
    store = dist.HashStore()
    lonely = channel(0, 3, store=store)
    store.set("all/1/2", b"here")
    for _ in range(2):
        with pytest.raises(PeerDiedError, match=r"rank 1 did not answer within 0\.2 s") as caught:
            lonely.exchange(b"hello")
        assert caught.value.ranks == (1,)


def test_a_rank_that_cannot_go_on_tells_the_others() -> None:
    store = dist.HashStore()
    channel(1, 2, store=store).fail("out of memory")
    with pytest.raises(PeerDiedError, match="rank 1 cannot go on: out of memory") as caught:
        channel(0, 2, store=store).all_reduce_max(np.zeros(1, np.int32))
    assert caught.value.ranks == (1,)


def test_a_channel_leaves_next_to_nothing_in_the_store() -> None:
    store = dist.HashStore()
    one = channel(store=store)
    for number in range(5):
        assert one.exchange(bytes([number])) == [bytes([number])]
        assert one.all_reduce_min(np.array([number, -number], np.int32)).tolist() == [number, -number]
    assert store.num_keys() <= 2


def test_bad_channels_are_refused() -> None:
    with pytest.raises(ConfigError, match="rank is 2 of size 2"):
        channel(2, 2)
    with pytest.raises(ConfigError, match="timeout_s is 0"):
        StoreChannel(dist.HashStore(), 0, 1, timeout_s=0, name="x")


def test_shared_memory_is_for_host_memory() -> None:
    with pytest.raises(ConfigError, match="weights are on a device"):
        SharedMemory(channel(), [torch.zeros(2, device="meta")])


def test_symmetric_memory_is_for_devices() -> None:
    with pytest.raises(BackendUnavailableError, match=r"cannot share memory of their devices: .* device type cpu"):
        SymmetricMemory(dist.ProcessGroup(0, 1), channel(), [torch.zeros(2, 3)])


def test_tensors_of_any_size_lie_in_shown_memory_without_touching() -> None:
    like = [torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(2, 5), torch.zeros(2, 1, dtype=torch.float64)]
    layer = as_layer(torch.zeros(mirror_bytes(like), dtype=torch.uint8), like)
    for number, tensor in enumerate(layer, 1):
        tensor.fill_(number)
    assert [(tensor.shape, tensor.dtype) for tensor in layer] == [(tensor.shape, tensor.dtype) for tensor in like]
    assert [tensor.unique().tolist() for tensor in layer] == [[1], [2], [3]]


@pytest.mark.parametrize("timeout_s", [0, float("inf")])
def test_transfers_need_an_end(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match=f"timeout_s is {timeout_s}; it must be a number of seconds above 0"):
        PointToPoint(dist.ProcessGroup(0, 1), "cpu", timeout_s=timeout_s)
