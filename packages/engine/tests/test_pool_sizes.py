import dataclasses

import pytest

from thalweg.cache import CacheGeometry, compute_layout
from thalweg.engine.config import EngineConfig
from thalweg.engine.draft_pool import draft_pool_bytes
from thalweg.engine.pool_sizes import host_memory_bytes, size_pools
from thalweg.engine.token_counts import token_count_bytes
from thalweg.interfaces import CacheLayout, CapacityError

GIB = 1 << 30


@pytest.fixture
def layout() -> CacheLayout:
    geometry = CacheGeometry(
        num_layers=3,
        compress_ratios=(0, 2, 1),
        kv_source_layers=(1, 2),
        index_key_source_layers=(1, 2),
        head_dim=64,
        index_head_dim=32,
        window_size=16,
    )
    return compute_layout(geometry)


def test_the_default_holds_every_sequence_at_full_length(layout: CacheLayout) -> None:
    config = EngineConfig.build(environ={}, max_num_seqs=8, max_model_len=1000)
    sizes = size_pools(config, layout, total_bytes=GIB)
    assert (sizes.num_blocks, sizes.num_state_slots, sizes.table_width) == (8 * 8 + 1, 10, 64)


def test_one_sequence_still_leaves_a_fifth_of_the_blocks(layout: CacheLayout) -> None:
    config = EngineConfig.build(environ={}, max_num_seqs=1, max_model_len=1280)
    assert size_pools(config, layout, total_bytes=GIB).num_blocks == 14


def test_drafts_and_the_step_in_flight_reach_beyond_the_longest_sequence(layout: CacheLayout) -> None:
    def sizes(length: int, draft_length: int, *, is_async: bool) -> tuple[int, int]:
        config = EngineConfig.build(environ={}, max_num_seqs=8, max_model_len=length, async_scheduling=is_async)
        found = size_pools(config, layout, total_bytes=GIB, draft_length=draft_length)
        return found.num_blocks, found.table_width

    assert sizes(1024, 0, is_async=False) == (8 * 8 + 1, 64)
    assert sizes(1024, 0, is_async=True) == (8 * 9 + 1, 64)
    assert sizes(1024 - 10, 5, is_async=False) == (8 * 8 + 1, 64)
    assert sizes(1024 - 10, 5, is_async=True) == (8 * 9 + 1, 64)
    assert sizes(1024 - 16, 5, is_async=True) == (8 * 8 + 1, 64)
    assert sizes(64 * 128, 0, is_async=True)[1] == 128


def test_the_memory_fraction_is_a_ceiling(layout: CacheLayout) -> None:
    config = EngineConfig.build(environ={}, max_num_seqs=64, max_model_len=4096, memory_fraction=0.25)
    slots = 77
    total = 4 * (slots * layout.slot_bytes + 101 * layout.block_bytes)
    assert size_pools(config, layout, total_bytes=total).num_blocks == 100


def test_a_wanted_number_of_blocks_is_taken_as_it_is(layout: CacheLayout) -> None:
    config = EngineConfig.build(environ={}, max_model_len=500, num_blocks=7, slot_ratio=2.0, max_num_seqs=3)
    sizes = size_pools(config, layout)
    assert (sizes.num_blocks, sizes.num_state_slots) == (7, 7)


def test_too_small_a_cache_says_how_many_blocks_it_takes(layout: CacheLayout) -> None:
    config = EngineConfig.build(environ={}, max_model_len=1000, num_blocks=9)
    with pytest.raises(CapacityError, match="sequences of up to 1000 tokens need 10 blocks, 9 are there"):
        size_pools(config, layout)
    config = EngineConfig.build(environ={}, max_model_len=1000)
    with pytest.raises(CapacityError, match="num_blocks is 0; no memory is left for the cache"):
        size_pools(config, layout, total_bytes=1000)


def test_more_blocks_than_the_device_holds_are_refused_before_anything_is_allocated(layout: CacheLayout) -> None:
    config = EngineConfig.build(environ={}, max_model_len=500, num_blocks=10**9, max_num_seqs=3)
    with pytest.raises(CapacityError, match=f"num_blocks is {10**9}; with 4 state slots .* the device has {GIB}"):
        size_pools(config, layout, total_bytes=GIB)
    slots = EngineConfig.build(environ={}, max_model_len=500, num_blocks=9, slot_ratio=1e9)
    with pytest.raises(CapacityError, match=r"num_blocks is 9; with .* state slots"):
        size_pools(slots, layout, total_bytes=GIB)


def test_what_is_kept_of_drafts_leaves_the_cache_less(layout: CacheLayout) -> None:
    config = EngineConfig.build(environ={}, max_num_seqs=7, max_model_len=4096, memory_fraction=0.5)
    pool = draft_pool_bytes(config, 3, 1000)
    assert pool == 8 * 3 * 1000 * 4
    coupled = config.with_options(verification="coupled")
    assert draft_pool_bytes(coupled, 3, 1000) == draft_pool_bytes(config, 0, 1000) == 0
    total = 2 * (9 * layout.slot_bytes + 101 * layout.block_bytes)
    assert size_pools(config, layout, total_bytes=total).num_blocks == 100
    assert size_pools(config, layout, total_bytes=total + 2 * pool, other_bytes=pool).num_blocks == 100
    assert size_pools(config, layout, total_bytes=total, other_bytes=pool).num_blocks < 100
    wanted = EngineConfig.build(environ={}, max_num_seqs=3, max_model_len=500, num_blocks=9)
    takes = 9 * layout.block_bytes + 4 * layout.slot_bytes
    assert size_pools(wanted, layout, total_bytes=takes + pool, other_bytes=pool).num_blocks == 9
    with pytest.raises(CapacityError, match=f"takes {takes} bytes, drafts .* take {pool}, the device has {takes}"):
        size_pools(wanted, layout, total_bytes=takes, other_bytes=pool)


def test_token_counts_leave_the_cache_less(layout: CacheLayout) -> None:
    config = EngineConfig.build(environ={}, max_num_seqs=7, max_model_len=4096, memory_fraction=0.5)
    counts = token_count_bytes(1000)
    assert counts == 5000
    total = 2 * (9 * layout.slot_bytes + 101 * layout.block_bytes)
    given = total + 2 * 9 * counts
    assert size_pools(config, layout, total_bytes=given, other_slot_bytes=counts).num_blocks == 100
    assert size_pools(config, layout, total_bytes=total, other_slot_bytes=counts).num_blocks < 100


def test_a_model_without_compressed_layers_needs_no_memory_for_blocks(layout: CacheLayout) -> None:
    config = EngineConfig.build(environ={}, max_num_seqs=2, max_model_len=256)
    assert size_pools(config, dataclasses.replace(layout, block_bytes=0), total_bytes=1).num_blocks == 5


def test_the_host_has_memory() -> None:
    assert host_memory_bytes() > GIB // 4
