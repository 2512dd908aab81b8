"""How many blocks and slots: the published numbers, the rules, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cache_testing.geometries import RELEASED

from thalweg.cache import (
    agree_num_blocks,
    block_table_width,
    check_num_blocks,
    compute_layout,
    free_bytes_for_blocks,
    max_sequence_length,
    min_num_blocks,
    num_blocks_in,
    num_state_slots,
)
from thalweg.interfaces import CapacityError, ConfigError

LAYOUT = compute_layout(RELEASED)


def test_sixty_gigabytes_hold_the_published_number_of_blocks() -> None:
    assert num_blocks_in(60_000_000_000, LAYOUT) == 526_094
    assert num_blocks_in(114_047, LAYOUT) == 0
    assert num_blocks_in(-1, LAYOUT) == 0


def test_state_slots_include_a_reserve_and_the_placeholder() -> None:
    assert num_state_slots(256) == 308
    assert num_state_slots(4) == 5
    assert num_state_slots(1, 1.0) == 2


def test_sequence_lengths_reserve_drafts_and_the_step_in_flight_as_recorded() -> None:
    recorded = json.loads((Path(__file__).parent / "golden" / "dspark" / "tables.json").read_text())["runtime_max_len"]
    assert len(recorded) == 16
    for case in recorded:
        length = max_sequence_length(case["max_model_len"], case["nextn"], asynchronous=case["zos"])
        assert length == case["runtime"], case


def test_table_widths_are_multiples_of_64() -> None:
    assert [block_table_width(n, 128) for n in (1, 64 * 128, 64 * 128 + 1)] == [64, 64, 128]


def test_the_state_pool_counts_twice_with_a_copy_buffer() -> None:
    plain = free_bytes_for_blocks(10**9, 0.9, 10**8, 10, LAYOUT, has_copy_buffer=False)
    assert plain == 900_000_000 - 100_000_000 - 10 * LAYOUT.slot_bytes
    assert free_bytes_for_blocks(10**9, 0.9, 10**8, 10, LAYOUT) == plain - 10 * LAYOUT.slot_bytes
    assert free_bytes_for_blocks(10**6, 0.9, 10**8, 10, LAYOUT) < 0


def test_ranks_agree_on_the_even_minimum() -> None:
    assert agree_num_blocks([101, 99, 200]) == 98
    assert agree_num_blocks([0, 5]) == 0


def test_the_longest_sequence_may_fill_four_fifths_of_the_blocks() -> None:
    check_num_blocks(10, 1024, 128)
    with pytest.raises(CapacityError, match="1025 tokens need 11 blocks, 10 are there; they allow 1024"):
        check_num_blocks(10, 1025, 128)
    check_num_blocks(11, 1025, 128)
    with pytest.raises(CapacityError, match="num_blocks is 0; no memory is left"):
        check_num_blocks(0, 1, 128)


@pytest.mark.parametrize("length", [1, 102, 103, 1024, 1025, 4096])
def test_the_smallest_pool_for_a_length_is_enough_and_one_block_less_is_not(length: int) -> None:
    needed = min_num_blocks(length, 128)
    check_num_blocks(needed, length, 128)
    with pytest.raises(CapacityError):
        check_num_blocks(needed - 1, length, 128)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: num_state_slots(0), "max_num_sequences is 0"),
        (lambda: num_state_slots(4, 0.9), "ratio is 0.9"),
        (lambda: num_state_slots(4, float("nan")), "ratio is nan"),
        (lambda: free_bytes_for_blocks(1, 0.0, 0, 1, LAYOUT), r"memory_fraction is 0\.0"),
        (lambda: free_bytes_for_blocks(1, 1.1, 0, 1, LAYOUT), r"memory_fraction is 1\.1"),
        (lambda: agree_num_blocks([]), "per_rank is empty"),
        (
            lambda: num_blocks_in(
                1,
                compute_layout(
                    replace(RELEASED, compress_ratios=(0,) * 40, kv_source_layers=(), index_key_source_layers=())
                ),
            ),
            "block_bytes is 0",
        ),
    ],
)
def test_bad_sizes_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
