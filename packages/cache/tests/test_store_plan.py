"""What is saved and loaded: complete blocks, windows that a ring still holds, waves, and the name of the format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cache_testing.geometries import RELEASED

from thalweg.cache import (
    SequenceStart,
    compute_layout,
    format_fingerprint,
    layer_waves,
    plan_save,
    wave_segments,
    whole_block,
    window_ends,
)
from thalweg.interfaces import ConfigError, LayerSpan

NAMED = replace(RELEASED, model_key="revision, rotary parameters")
LAYOUT = compute_layout(NAMED)
COLD = SequenceStart()


@pytest.mark.parametrize("extra", [0, 128, 268])
@pytest.mark.parametrize("exact_from", [0, 256])
def test_a_window_may_be_saved_while_the_ring_holds_all_of_it(extra: int, exact_from: int) -> None:
    layout = compute_layout(replace(NAMED, extra_ring=extra))
    for length in range(exact_from, 1300):
        held = range(max(length - layout.ring_length, exact_from), length)
        want = [
            end
            for end in range(128, length + 1, 128)
            if all(p in held for p in (end - 128, end - 1)) and end - 128 >= exact_from
        ]
        assert window_ends(layout, length, exact_from) == want


def test_longer_rings_hold_the_anchors_that_hits_need() -> None:
    for length in range(402, 1500):
        assert length // 128 * 128 in window_ends(compute_layout(replace(NAMED, extra_ring=128)), length)
        ends = window_ends(compute_layout(replace(NAMED, extra_ring=268)), length)
        assert {length // 128 * 128, (length - 140) // 128 * 128} <= set(ends)


def test_rejected_drafts_take_ring_rows_too() -> None:
    assert window_ends(LAYOUT, 262) == [256]
    assert window_ends(LAYOUT, 257, drafts_written=5) == [256]
    assert window_ends(LAYOUT, 258, drafts_written=5) == []
    assert plan_save(LAYOUT, 258, 0, [1, 2, 3], COLD, drafts_written=5).window_ends == ()


def test_blocks_are_saved_once_and_as_they_complete() -> None:
    table = list(range(11, 21))
    saved = 0
    seen: list[int] = []
    for length in (1, 127, 128, 300, 511, 512, 1000):
        plan = plan_save(LAYOUT, length, saved, table, COLD)
        assert plan.first_chunk * 128 == saved
        seen += plan.block_ids
        saved += len(plan.block_ids) * 128
        assert saved == length // 128 * 128
    assert seen == table[:7]


def test_what_a_hit_brought_and_what_was_replayed_are_not_saved() -> None:
    replayed = SequenceStart(128, 128, 128, 256)
    table = list(range(11, 21))
    assert plan_save(LAYOUT, 258, 0, table, replayed).block_ids == ()
    assert plan_save(LAYOUT, 258, 0, table, replayed).window_ends == ()
    plan = plan_save(LAYOUT, 384, 0, table, replayed)
    assert (plan.first_chunk, plan.block_ids, plan.window_ends) == (2, (13,), (384,))
    restored = plan_save(LAYOUT, 385, 0, table, SequenceStart(256, 0, 256, 256))
    assert (restored.block_ids, restored.window_ends) == ((13,), (384,))


def test_waves_follow_the_layers_and_cover_a_block_once() -> None:
    waves = layer_waves(LAYOUT)
    assert [wave.layer for wave in waves] == [2, 8, 14, 20]
    assert sum(wave.length for wave in waves) == LAYOUT.block_payload_bytes == 113_920
    assert [wave.offset for wave in waves] == [0, 22_784, 45_568, 68_352]
    assert whole_block(LAYOUT) == (LayerSpan(2, 0, 113_920),)
    assert wave_segments(waves[1], [5, 3]).tolist() == [[5, 22_784, 22_784], [3, 22_784, 22_784]]
    assert wave_segments(waves[1], []).shape == (0, 3)


def test_a_model_without_a_window_has_no_windows_to_save() -> None:
    layout = compute_layout(replace(NAMED, window_size=0))
    assert plan_save(layout, 256, 0, [1, 2], COLD).window_ends == ()


@pytest.mark.parametrize(
    ("saved", "length", "message"),
    [(1, 200, "saved_tokens is 1; a multiple of 128"), (-128, 200, "is -128"), (0, 257, "the 2 blocks hold 256")],
)
def test_a_plan_that_does_not_fit_is_refused(saved: int, length: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_save(LAYOUT, length, saved, [1, 2], COLD)


def test_the_fingerprint_is_stable() -> None:
    assert len(format_fingerprint(NAMED)) == 32
    assert format_fingerprint(NAMED).hex()[:16] == "360ad89f4bb4c59e"


@pytest.mark.parametrize("change", [{"extra_ring": 128}, {"num_draft_layers": 0}, {"max_backtracking": 6}])
def test_engines_that_store_the_same_bytes_share_a_fingerprint(change: dict[str, Any]) -> None:
    assert format_fingerprint(replace(NAMED, **change)) == format_fingerprint(NAMED)


@pytest.mark.parametrize(
    "change",
    [
        {"model_key": "another"},
        {"fp4_main": False},
        {"plain": True},
        {"draft_length": 4},
        {"tokens_per_block": 64},
        {"window_size": 64},
        {"head_dim": 256},
        {"index_head_dim": 64},
        {"kv_source_layers": (2, 8, 14, 20, 30), "index_key_source_layers": (2, 8, 14, 20, 30)},
        {"index_key_source_layers": (2, 8, 14, 20, 30)},
        {"compress_ratios": (0,) + (2,) * 19 + (1,) * 20, "kv_source_layers": (1, 8, 14, 20)}
        | {"index_key_source_layers": (1, 8, 14, 20)},
    ],
)
def test_every_fact_that_reinterprets_a_stored_byte_changes_the_fingerprint(change: dict[str, Any]) -> None:
    assert format_fingerprint(replace(NAMED, **change)) != format_fingerprint(NAMED)


def test_a_geometry_that_names_no_model_has_no_fingerprint() -> None:
    with pytest.raises(ConfigError, match="model_key is ''"):
        format_fingerprint(replace(NAMED, model_key=""))
