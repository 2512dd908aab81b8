"""Layouts: the recorded ones to the byte, the fingerprint, and geometries that must be refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cache_testing.geometries import RELEASED, TINY
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.cache import CacheGeometry, CachePools, block_parts, compute_layout, num_state_slots
from thalweg.interfaces import CacheViews, ConfigError
from thalweg.kernels import RecordFormat

RECORDED = json.loads((Path(__file__).parent / "golden/cache/layout.json").read_text())
GEOMETRIES = [
    RELEASED,
    replace(RELEASED, extra_ring=128),
    replace(RELEASED, fp4_main=False),
    replace(
        RELEASED,
        num_layers=6,
        compress_ratios=(0, 2, 2, 1, 1, 1),
        kv_source_layers=(1, 3),
        index_key_source_layers=(1, 3),
        num_draft_layers=1,
    ),
]
CASES = list(zip(GEOMETRIES, RECORDED, strict=True))


def describe(view: torch.Tensor) -> dict[str, Any]:
    return {
        "shape": list(view.shape),
        "stride": list(view.stride()),
        "dtype": str(view.dtype).removeprefix("torch."),
        "byte_offset": view.storage_offset() * view.itemsize,
    }


def view_or_none(get: Any, layer: int) -> dict[str, Any] | None:
    try:
        return describe(get(layer))
    except ConfigError:
        return None


@pytest.mark.parametrize(("geometry", "recorded"), CASES)
def test_every_view_of_every_layer_lies_where_it_was_recorded(
    geometry: CacheGeometry, recorded: dict[str, Any]
) -> None:
    pools = CachePools(geometry, 3, 2)
    assert len(recorded["layers"]) == geometry.num_run_time_layers
    for layer, views in enumerate(recorded["layers"]):
        assert view_or_none(pools.window, layer) == views["swa_cache"]
        assert view_or_none(pools.main, layer) == views["ca_cache"]
        assert view_or_none(pools.index_keys, layer) == views["ica_cache"]
        assert view_or_none(pools.compressor, layer) == views["ca_state"]
        assert views["ica_state"] is None


@pytest.mark.parametrize(("geometry", "recorded"), CASES)
def test_sizes_and_the_store_list_are_the_recorded_ones(geometry: CacheGeometry, recorded: dict[str, Any]) -> None:
    layout = compute_layout(geometry)
    assert [[s.layer, s.offset, s.length] for s in layout.block_spans] == recorded["block_layout"]
    assert layout.block_bytes == recorded["bytes_per_block"]
    assert layout.block_payload_bytes == recorded["payload_bytes_per_block"]
    assert layout.slot_bytes == recorded["state_bytes_per_slot"]
    assert layout.ring_length == recorded["ring_kvstore"]
    assert num_state_slots(recorded["max_num_seqs"]) == recorded["num_state_slots"]
    windows = [geometry.num_run_time_layers, geometry.num_stored_layers]
    assert [*windows, windows[0] - windows[1]] == recorded["swa_layers"]

    inference = compute_layout(replace(geometry, extra_ring=0))
    assert inference.ring_length == recorded["ring_inference"]
    assert inference.slot_bytes == recorded["state_bytes_inference"]
    assert inference.slot_stored_bytes == recorded["state_bytes_to_disk"]
    dropped = inference.window_spans[geometry.num_stored_layers :] + inference.compressor_spans
    assert sum(span.length for span in dropped) == recorded["dropped_bytes_inference"]


def test_the_released_model_has_its_published_sizes() -> None:
    layout = compute_layout(RELEASED)
    assert (layout.block_bytes, layout.block_payload_bytes) == (114_048, 113_920)
    assert (layout.slot_bytes, layout.slot_stored_bytes) == (3_128_928, 1_415_040)
    assert (layout.ring_length, layout.compressor_ring_length) == (134, 7)
    assert layout.block_payload_bytes / layout.tokens_per_block == 890
    assert compute_layout(replace(RELEASED, extra_ring=268)).slot_bytes == 9_213_600


@st.composite
def geometries(draw: st.DrawFn) -> CacheGeometry:
    """Any valid geometry: segments of equal ratio, each opened by a source."""
    ratios, kv, index = [0] * draw(st.integers(0, 2)), [], []
    for _ in range(draw(st.integers(0, 4))):
        ratio = draw(st.sampled_from((1, 2)))
        kv.append(len(ratios))
        index.append(len(ratios))
        ratios.append(ratio)
        for _ in range(draw(st.integers(0, 2))):
            if draw(st.booleans()):
                index.append(len(ratios))
            ratios.append(ratio)
    ratios = ratios or [0]
    return CacheGeometry(
        num_layers=len(ratios),
        compress_ratios=tuple(ratios),
        kv_source_layers=tuple(kv),
        index_key_source_layers=tuple(index),
        head_dim=32 * draw(st.integers(1, 5)),
        index_head_dim=32 * draw(st.integers(1, 4)),
        window_size=draw(st.integers(0, 20)),
        num_draft_layers=draw(st.integers(0, 2)),
        draft_length=draw(st.integers(0, 6)),
        max_backtracking=draw(st.integers(0, 9)),
        tokens_per_block=2 * draw(st.integers(1, 10)),
        fp4_main=draw(st.booleans()),
        plain=draw(st.booleans()),
    )


@settings(max_examples=80, deadline=None)
@given(geometry=geometries())
def test_views_tile_the_pools_without_touching_each_other(geometry: CacheGeometry) -> None:
    pools = CachePools(geometry, 2, 2)
    views: CacheViews = pools
    layout = views.layout
    blocks, states = pools.blocks, pools.states
    assert blocks.shape == (2, layout.block_bytes)
    assert blocks.untyped_storage().nbytes() % 4096 == 0
    written = 0
    for part in block_parts(geometry):
        for get, offset in ((pools.main, part.main_offset), (pools.index_keys, part.index_offset)):
            if offset is None:
                continue
            view = get(part.layer)
            assert offset % 32 == 0
            view += 1
            written += view.numel()
    assert int(blocks.sum()) == written
    assert not (blocks > 1).any()

    written = 0
    for span in layout.window_spans:
        view = pools.window(span.layer)
        view += 1
        written += view.numel()
    for span in layout.compressor_spans:
        before = states.clone()
        pools.compressor(span.layer).fill_(torch.nan)
        changed = (states != before).nonzero()[:, 1]
        assert span.offset <= int(changed.min()) <= int(changed.max()) < span.offset + span.length
        pools.compressor(span.layer).zero_()
    assert int(states.sum()) == written
    if geometry.plain and layout.slot_bytes:
        assert layout.slot_bytes % 8 == 0


@settings(max_examples=60, deadline=None)
@given(geometry=geometries())
def test_spans_are_ordered_and_inside_their_row(geometry: CacheGeometry) -> None:
    layout = compute_layout(geometry)
    for spans, limit in (
        (layout.block_spans, layout.block_payload_bytes),
        (layout.window_spans + layout.compressor_spans, layout.slot_bytes),
    ):
        end = 0
        for span in spans:
            assert span.offset == end
            end += span.length
        assert end <= limit
    assert layout.block_payload_bytes <= layout.block_bytes
    assert layout.slot_stored_bytes == sum(
        s.length for s in layout.window_spans if s.layer < geometry.num_stored_layers
    )


def test_readers_of_a_stream_see_the_view_of_its_source() -> None:
    pools = CachePools(TINY, 2, 2)
    assert pools.main(3).data_ptr() == pools.main(2).data_ptr()
    assert pools.index_keys(6).data_ptr() == pools.index_keys(4).data_ptr()
    assert pools.main(2).data_ptr() != pools.main(4).data_ptr()
    assert (pools.window_format, pools.main_format, pools.index_format) == (
        RecordFormat.MXFP8,
        RecordFormat.FP4_MAIN,
        RecordFormat.MXFP4_INDEX,
    )


def test_plain_mode_keeps_float64_rows() -> None:
    pools = CachePools(replace(TINY, plain=True), 2, 2)
    assert pools.window(0).shape == (2, 20, 1, 512)
    assert pools.main(2).shape == (2, 8, 1, 512)
    assert pools.index_keys(2).shape == (2, 8, 1, 256)
    assert pools.compressor(2).dtype == torch.float64
    assert {pools.window_format, pools.main_format, pools.index_format} == {RecordFormat.FLOAT64}


@pytest.mark.parametrize(
    "change",
    [
        {"fp4_main": False},
        {"plain": True},
        {"draft_length": 4},
        {"extra_ring": 1},
        {"tokens_per_block": 32},
        {"model_key": "another revision"},
        {"window_size": 17},
        {"kv_source_layers": (2, 3, 4), "index_key_source_layers": (2, 3, 4)},
        {"compress_ratios": (0, 0, 2, 2, 2, 2, 2)},
    ],
)
def test_the_fingerprint_changes_with_every_fact_that_moves_or_reinterprets_a_byte(change: dict[str, Any]) -> None:
    assert compute_layout(replace(TINY, **change)).fingerprint != compute_layout(TINY).fingerprint


def test_the_fingerprint_is_stable_and_ignores_how_the_backtracking_was_given() -> None:
    assert compute_layout(TINY).fingerprint == compute_layout(replace(TINY)).fingerprint
    same = replace(TINY, draft_length=0, max_backtracking=4)
    assert compute_layout(same) == compute_layout(TINY)
    assert compute_layout(TINY).fingerprint[:12] == "c48b2b88d372"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers is 0"),
        ({"head_dim": 48}, "head_dim is 48; a multiple of 32"),
        ({"index_head_dim": 33}, "index_head_dim is 33"),
        ({"window_size": -1}, "window_size is -1"),
        ({"draft_length": True}, "draft_length is True"),
        ({"draft_length": 2.0}, "draft_length is 2.0"),
        ({"tokens_per_block": 15}, r"tokens_per_block is 15; compress_ratios\[2\] = 2 must divide it"),
        ({"compress_ratios": (0, 0, 2, 2, 1, 1, 1, 0)}, "has 8 entries; one per backbone layer, 7"),
        ({"compress_ratios": (0, 0, 2, 2, 4, 1, 1)}, r"compress_ratios\[4\] is 4; 0, 1 and 2"),
        ({"kv_source_layers": (4, 2)}, "increasing layers"),
        ({"kv_source_layers": (2, 7)}, "has layer 7; 0..6"),
        ({"kv_source_layers": (1, 2, 4)}, "has layer 1, whose ratio is 0"),
        ({"kv_source_layers": (4,)}, "layer 2 has no source before it"),
        ({"kv_source_layers": (2,)}, r"compress_ratios\[4\] is 1; its KV source, layer 2, has 2"),
        ({"index_key_source_layers": (2,)}, "index_key_source_layers lacks layer 4"),
        ({"window_size": 0, "extra_ring": 8}, "extra_ring is 8"),
    ],
)
def test_a_bad_geometry_names_the_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(TINY, **change)


def test_layers_without_a_part_are_refused_by_name() -> None:
    pools = CachePools(TINY, 2, 2)
    with pytest.raises(ConfigError, match="layer is 0, which reads no compressed stream"):
        pools.main(0)
    with pytest.raises(ConfigError, match="layer is 7, which reads no compressed stream"):
        pools.index_keys(7)
    with pytest.raises(ConfigError, match=r"layer is 8; 0\.\.7"):
        pools.main(8)
    with pytest.raises(ConfigError, match="layer is 8; layers 0, 1, 2, 3, 4, 5, 6, 7 have a window ring"):
        pools.window(8)
    with pytest.raises(ConfigError, match="layer is 4; layers 2 have a compressor ring"):
        pools.compressor(4)
    with pytest.raises(ConfigError, match="num_blocks is 0"):
        CachePools(TINY, 0, 2)
    with pytest.raises(ConfigError, match="num_slots is 0"):
        CachePools(TINY, 2, 0)


def test_a_model_without_a_window_has_no_rings() -> None:
    layout = compute_layout(replace(TINY, window_size=0))
    assert layout.ring_length == 0
    assert layout.window_spans == ()
    assert layout.slot_bytes % 128 == 0
    with pytest.raises(ConfigError, match=r"layers \(none\) have a window ring"):
        CachePools(replace(TINY, window_size=0), 2, 2).window(0)
