"""Ring arithmetic: recorded expansions, chunks, rollback bounds, and bad lengths."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.cache import (
    expand_window,
    flat_slots,
    min_compressor_ring_length,
    min_ring_length,
    prefill_store_slots,
    window_reads,
)
from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.metadata import expand_window_reads

INDICES = json.loads((Path(__file__).parent / "golden/cache/indices.json").read_text())
Simulation = Callable[[int, int, int], int]


@pytest.mark.parametrize("name", ["swa_decode", "swa_decode_134"])
def test_window_reads_expand_as_recorded(name: str) -> None:
    case = INDICES[name]
    got = expand_window(np.array(case["offset_len"], np.int32), case["window"], case["ring"])
    assert got.tolist() == case["out"]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_read_names_the_slots_of_the_visible_positions(data: st.DataObject) -> None:
    window = data.draw(st.integers(1, 20))
    ring = window + data.draw(st.integers(0, 9))
    positions = np.array(data.draw(st.lists(st.integers(0, 100), min_size=1, max_size=5)))
    slots = np.array([data.draw(st.integers(0, 6)) for _ in positions])
    reads = window_reads(slots, positions, window, ring)
    expanded = expand_window(reads, window, ring)
    assert torch.equal(torch.from_numpy(expanded), expand_window_reads(torch.from_numpy(reads), window, ring))
    for row, position, slot in zip(expanded, positions, slots, strict=True):
        visible = range(max(0, position - window + 1), position + 1)
        assert row.tolist() == [slot * ring + p % ring for p in visible] + [-1] * (window - len(visible))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_chunk_leaves_its_last_rows_in_the_ring_and_writes_no_slot_twice(data: st.DataObject) -> None:
    ring = data.draw(st.integers(1, 12))
    count = data.draw(st.integers(1, 4))
    first = [data.draw(st.integers(0, 40)) for _ in range(count)]
    lengths = [data.draw(st.integers(1, 30)) for _ in range(count)]
    got = prefill_store_slots(range(count), first, lengths, ring)
    stored = got[got >= 0]
    assert np.unique(stored).size == stored.size
    row = 0
    for slot in range(count):
        for rank in range(lengths[slot]):
            expected = slot * ring + (first[slot] + rank) % ring if lengths[slot] - rank <= ring else -1
            assert got[row] == expected
            row += 1


@pytest.mark.parametrize("ring_length", [133, 134])
@pytest.mark.parametrize("seed", range(3))
def test_a_window_ring_of_at_least_window_plus_drafts_survives_rejections(
    window_ring: Simulation, ring_length: int, seed: int
) -> None:
    assert ring_length >= min_ring_length(128, 5) == 133
    assert window_ring(ring_length, 400, seed) == 0


def test_a_window_ring_one_shorter_loses_rows(window_ring: Simulation) -> None:
    assert window_ring(132, 400, 0) > 0


@pytest.mark.parametrize("seed", range(3))
def test_a_compressor_ring_of_seven_survives_rejections(compressor_ring: Simulation, seed: int) -> None:
    assert min_compressor_ring_length(2, 6) == 7
    assert compressor_ring(7, 300, seed) == 0


def test_a_compressor_ring_of_six_pools_wrong_rows(compressor_ring: Simulation) -> None:
    assert compressor_ring(6, 300, 0) > 0


def test_slots_broadcast_and_are_int32() -> None:
    assert flat_slots(2, [0, 133, 134, 300], 134).tolist() == [268, 401, 268, 300]
    assert flat_slots([1, 2], 5, 9).dtype == np.int32


@pytest.mark.parametrize("call", [lambda: flat_slots(1, 2, 0), lambda: expand_window(np.zeros((1, 2), np.int32), 4, 0)])
def test_a_ring_without_rows_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="ring_length is 0"):
        call()
