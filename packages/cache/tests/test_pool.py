"""The pools over their life: reads equal writes, forks diverge, freed memory shows, copies and their checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.cache import CacheGeometry, CachePools, copy_blocks, copy_states, zero_states
from thalweg.interfaces import CacheViews, CapacityError, ConfigError
from thalweg.kernels.reference import cache


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_every_read_returns_what_its_own_sequence_wrote(
    pool_simulation: Callable[..., Any], tiny_geometry: CacheGeometry, plain: bool, seed: int
) -> None:
    simulation = pool_simulation(replace(tiny_geometry, plain=plain), seed)
    for _ in range(40):
        simulation.step()


@settings(max_examples=40, deadline=None)
@given(rows=st.permutations(range(8)), count=st.integers(0, 4))
def test_copies_move_whole_rows_and_leave_the_others(rows: list[int], count: int) -> None:
    rows = [row for row in rows if row]
    pairs = list(zip(rows[:3], rows[3:6], strict=True))[:count]
    for copy in (copy_blocks, copy_states):
        pool = torch.randint(0, 256, (8, 96), dtype=torch.uint8)
        before = pool.clone()
        copy(pool, pairs)
        for row in range(8):
            source = {destination: source for source, destination in pairs}.get(row, row)
            assert torch.equal(pool[row], before[source])


def test_a_block_pair_with_destination_zero_copies_nothing() -> None:
    pool = torch.arange(12, dtype=torch.uint8).view(4, 3)
    before = pool.clone()
    copy_blocks(pool, [(3, 0)])
    assert torch.equal(pool, before)
    copy_blocks(pool, [(3, 0), (3, 1), (3, 2)])
    assert pool.tolist() == [[0, 1, 2], [9, 10, 11], [9, 10, 11], [9, 10, 11]]


def test_zeroed_slots_are_zero_and_the_others_stay() -> None:
    pool = torch.full((4, 6), 7, dtype=torch.uint8)
    zero_states(pool, [2, 3])
    assert pool[:, 0].tolist() == [7, 7, 0, 0]
    zero_states(pool, [])
    assert pool[:, 0].tolist() == [7, 7, 0, 0]


def test_a_fork_equals_its_parent_and_then_diverges_without_touching_it(tiny_geometry: CacheGeometry) -> None:
    pools = CachePools(tiny_geometry, 6, 4)
    pools.states.random_(0, 100)
    pools.blocks.random_(0, 100)
    copy_states(pools.states, [(1, 3)])
    copy_blocks(pools.blocks, [(2, 5)])
    assert torch.equal(pools.states[3], pools.states[1])
    parent = pools.states[1].clone(), pools.blocks[2].clone()
    cache.store_records(pools.window(4), torch.tensor([3 * 20 + 7]), torch.ones(1, 64), pools.window_format)
    cache.store_records(pools.main(2), torch.tensor([5 * 8]), torch.ones(1, 64), pools.main_format)
    pools.compressor(2)[3] = 5.0
    assert torch.equal(pools.states[1], parent[0])
    assert torch.equal(pools.blocks[2], parent[1])
    assert not torch.equal(pools.states[3], parent[0])
    assert not torch.equal(pools.blocks[5], parent[1])


@pytest.mark.parametrize("plain", [False, True])
def test_freed_memory_reads_as_nan_when_poisoned(tiny_geometry: CacheGeometry, plain: bool) -> None:
    geometry = replace(tiny_geometry, plain=plain)
    quiet, pools = CachePools(geometry, 3, 3), CachePools(geometry, 3, 3, poison_freed=True)
    quiet.freed([1], [1])
    assert not quiet.blocks.any()
    assert not quiet.states.any()
    pools.freed([1], [2])
    for view, record_format, entries, row in (
        (pools.main(2), pools.main_format, 8, 1),
        (pools.index_keys(4), pools.index_format, 16, 1),
        (pools.window(7), pools.window_format, 20, 2),
    ):
        slots = torch.arange(3 * entries)
        is_nan = cache.gather_records(view, slots, record_format).isnan().all(dim=1)
        assert is_nan.tolist() == [slot // entries == row for slot in slots.tolist()]
    assert pools.compressor(2).isnan().flatten(1).all(dim=1).tolist() == [False, False, True]


def test_pools_satisfy_the_views_that_the_model_expects(tiny_geometry: CacheGeometry) -> None:
    views: CacheViews = CachePools(tiny_geometry, 2, 2)
    assert views.layout.ring_length == 20
    for name in ("window", "main", "index_keys", "compressor"):
        assert callable(getattr(views, name))


def pool() -> torch.Tensor:
    return torch.zeros(4, 3, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: copy_blocks(pool(), [(4, 1)]), r"block_copies has id 4; 1\.\.3"),
        (lambda: copy_blocks(pool(), [(0, 1)]), "block_copies has id 0"),
        (lambda: copy_states(pool(), [(1, 0)]), "state_copies has id 0"),
        (lambda: copy_states(pool(), [(1, -1)]), "state_copies has id -1"),
        (lambda: copy_states(pool(), [(1, 3), (2, 3)]), "writes a destination twice"),
        (lambda: copy_states(pool(), [(1, 2), (2, 3)]), "reads what it writes"),
        (lambda: copy_states(pool(), [1, 2]), r"\[k, 2\]"),
        (lambda: zero_states(pool(), [4]), "zero_state_slots has id 4"),
    ],
)
def test_a_bad_copy_list_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_poison_outside_the_pool_is_refused(tiny_geometry: CacheGeometry) -> None:
    with pytest.raises(ConfigError, match=r"0\.\.2 are accepted"):
        CachePools(tiny_geometry, 3, 3, poison_freed=True).freed([3])


@pytest.mark.parametrize("count", [10**14, 10**30])
def test_pools_larger_than_any_memory_are_refused(tiny_geometry: CacheGeometry, count: int) -> None:
    with pytest.raises(CapacityError, match=f"the cache asks for {count} rows of .* cpu lacks that memory"):
        CachePools(tiny_geometry, count, 3)
