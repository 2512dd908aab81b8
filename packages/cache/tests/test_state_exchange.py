"""States outside their slot: recorded ring exchanges, both directions between engines, and what must be refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cache_testing.geometries import RELEASED, TINY

from thalweg.cache import CacheGeometry, CachePools, StateExchange
from thalweg.interfaces import ConfigError

RECORDED = sorted((Path(__file__).parent / "golden/cache").glob("ring_*.npz"))


def random_pools(geometry: CacheGeometry, seed: int) -> CachePools:
    pools = CachePools(geometry, 2, 4)
    pools.states.random_(0, 256, generator=torch.Generator().manual_seed(seed))
    return pools


def rows_of(pools: CachePools, slot: int, layer: int, positions: range) -> torch.Tensor:
    return pools.window(layer)[slot, [p % pools.layout.ring_length for p in positions]]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_rings_change_length_as_recorded(path: Path) -> None:
    case = np.load(path)
    outside, inside, end = (int(case[name]) for name in ("inference_ring", "kvstore_ring", "last_hit_position"))
    layers, _, width = case["cache"].shape
    backtracking = 6 if outside == 134 else 5
    geometry = CacheGeometry(
        num_layers=layers,
        compress_ratios=(0,) * layers,
        kv_source_layers=(),
        index_key_source_layers=(),
        head_dim=32,
        index_head_dim=32,
        window_size=outside - backtracking,
        max_backtracking=backtracking,
        extra_ring=inside - outside,
        tokens_per_block=1,
    )
    pools = CachePools(geometry, 1, 2)
    exchange = StateExchange(pools)
    for layer in range(layers):
        pools.window(layer)[1, :, 0, :width] = torch.from_numpy(case["cache"][layer])
    stored = torch.zeros(exchange.stored_bytes, dtype=torch.uint8)
    exchange.export_state(1, end, stored, full=False)
    record = pools.window_format.record_bytes(32)
    rings = stored.view(layers, -1)[:, : outside * record].view(layers, outside, record)
    assert np.array_equal(rings[:, :, :width].numpy(), case["select_out"])

    rings[:, :, :width] = torch.from_numpy(case["tensor"])
    exchange.import_state(1, end, stored)
    for layer in range(layers):
        assert np.array_equal(pools.window(layer)[1, :, 0, :width].numpy(), case["load_out"][layer])


@pytest.mark.parametrize("extra", [0, 7, 16, 41])
@pytest.mark.parametrize("other", [0, 20])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("end", [32, 48, 1600])
def test_another_engine_finds_every_row_where_it_looks(extra: int, other: int, full: bool, end: int) -> None:
    source = random_pools(replace(TINY, extra_ring=extra), 1)
    target = random_pools(replace(TINY, extra_ring=other), 2)
    before, given, taken = target.states.clone(), StateExchange(source), StateExchange(target)
    data = torch.full((given.full_bytes if full else given.stored_bytes,), 0xA5, dtype=torch.uint8)
    given.export_state(1, end, data, full=full)
    taken.import_state(3, end, data)
    held = range(end - 20, end)
    moved = range(8) if full else range(4)
    for layer in range(8):
        same = torch.equal(rows_of(target, 3, layer, held), rows_of(source, 1, layer, held))
        assert same == (layer in moved)
    raw = [span for span in target.layout.compressor_spans for _ in [0] if full]
    for span, origin in zip(raw, source.layout.compressor_spans, strict=False):
        got = target.states[3, span.offset : span.offset + span.length]
        assert torch.equal(got, source.states[1, origin.offset : origin.offset + origin.length])
    if not full:
        stored = target.layout.slot_stored_bytes
        assert torch.equal(target.states[3, stored:], before[3, stored:])
    assert torch.equal(target.states[:3], before[:3])


@pytest.mark.parametrize("extra", [0, 30])
@pytest.mark.parametrize(("end", "valid"), [(16, 0), (32, 20), (32, 32), (48, 3)])
def test_rows_below_the_valid_start_leave_as_zeros(extra: int, end: int, valid: int) -> None:
    source = random_pools(replace(TINY, extra_ring=extra), 3)
    exchange = StateExchange(source)
    data = torch.full((exchange.stored_bytes,), 0xA5, dtype=torch.uint8)
    exchange.export_state(2, end, data, full=False, valid_start=valid)
    target = CachePools(TINY, 2, 2)
    StateExchange(target).import_state(1, end, data)
    for layer in range(4):
        for position in range(max(end - 20, -20), end):
            got = target.window(layer)[1, position % 20, 0]
            if position < valid:
                assert not got.any()
            else:
                assert torch.equal(got, source.window(layer)[2, position % source.layout.ring_length, 0])


def test_the_released_model_has_its_published_sizes() -> None:
    released = replace(RELEASED, extra_ring=268)
    exchange = StateExchange(CachePools(released, 1, 2))
    assert (exchange.stored_bytes, exchange.full_bytes) == (1_415_040, 3_128_928)


def refused(**change: Any) -> None:
    arguments = {"slot": 1, "end": 32, "full": False, "valid_start": 0} | change
    exchange = StateExchange(CachePools(TINY, 2, 2))
    out = arguments.pop("out", torch.zeros(exchange.stored_bytes, dtype=torch.uint8))
    exchange.export_state(out=out, **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slot": 0}, r"slot is 0; 1\.\.1"),
        ({"slot": 2}, "slot is 2"),
        ({"end": 0}, "end is 0"),
        ({"end": 33}, "end is 33; a store keeps states at multiples of 16"),
        ({"valid_start": 33}, r"valid_start is 33; 0\.\.32"),
        ({"full": True}, "with full=True it needs"),
        ({"out": torch.zeros(8)}, r"data is torch.float32 \[8\]"),
    ],
)
def test_an_export_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        refused(**change)


def test_an_import_of_another_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="data has 7 bytes"):
        StateExchange(CachePools(TINY, 2, 2)).import_state(1, 16, torch.zeros(7, dtype=torch.uint8))
