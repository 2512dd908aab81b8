"""Host metadata: the recorded steps, agreement with the device form, and plans that must be refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.cache import (
    DecodeArrays,
    MetadataShape,
    PrefillArrays,
    build_decode_metadata,
    build_prefill_metadata,
)
from thalweg.interfaces import ConfigError
from thalweg.kernels import PLACEHOLDER_QUERY
from thalweg.kernels.reference.cache import segments_to_slots
from thalweg.kernels.reference.metadata import decode_metadata, expand_window_pivots

GOLDEN = Path(__file__).parent / "golden"
HOST = json.loads((GOLDEN / "cache/decode_metadata_host.json").read_text())
PROMPT = json.loads((GOLDEN / "scheduler/prepare_prompt.json").read_text())
DECODE = json.loads((GOLDEN / "scheduler/prepare_decode.json").read_text())


def packed(tables: list[list[int]]) -> tuple[list[int], list[int]]:
    offsets = np.cumsum([0, *(len(table) for table in tables)]).tolist()
    return offsets, [block for table in tables for block in table]


def assert_equal(got: np.ndarray[Any, Any], tensor: dict[str, Any]) -> None:
    assert list(got.shape) == tensor["shape"]
    assert got.reshape(-1).tolist() == tensor["data"]


@pytest.mark.parametrize("case", range(len(HOST)))
def test_decode_arrays_of_the_host_are_the_recorded_ones(case: int) -> None:
    given, want = HOST[case]["inputs"], HOST[case]["out"]
    ratios = sorted([*given["dense"], *given["sparse"]])
    got = build_decode_metadata(
        MetadataShape(given["block"], given["window"], given["ring"], tuple(ratios)),
        [seq["seqlen_q"] for seq in given["seqs"]],
        [seq["seqlen_k"] for seq in given["seqs"]],
        [seq["state_id"] for seq in given["seqs"]],
        *packed([seq["block_table"] for seq in given["seqs"]]),
        given["max_num_blocks"],
    )
    assert got.positions.tolist() == want["positions"]
    assert got.valid_mask.tolist() == want["valid_token_mask"]
    assert got.window_store_slots.tolist() == want["slot_mapping_store_swa"]
    assert got.window_reads.tolist() == want["kv_swa_index_offset_len"]
    assert got.state_slots.tolist() == want["state_block_idx"]
    assert got.context_lengths.tolist() == want["context_lens"]
    assert got.query_indices.tolist() == want["query_indices"]
    for ratio in ratios:
        assert got.compressed_positions[ratio].tolist() == want["positions_c"][str(ratio)]
        assert got.compressed_store_slots[ratio].tolist() == want["slot_mapping_store_ca"][str(ratio)]
        if str(ratio) in want["klen"]:
            assert got.visible_entries[ratio].tolist() == want["klen"][str(ratio)]


@pytest.mark.parametrize("case", range(len(DECODE)))
def test_decode_arrays_are_those_of_the_recorded_model_inputs(case: int) -> None:
    given, want = DECODE[case]["input"], DECODE[case]["output"]
    ratios = sorted([*given["dense_compress_ratios"], *given["sparse_compress_ratios"]])
    seqs = given["seqs"]
    got = build_decode_metadata(
        MetadataShape(given["block_size"], given["window_size"], given["swa_block_size"], tuple(ratios)),
        [seq["q"] for seq in seqs],
        [seq["k"] for seq in seqs],
        [seq["state"] for seq in seqs],
        *packed([seq["blocks"] for seq in seqs]),
        given["max_num_blocks"],
        [seq.get("rid") == "placeholder" for seq in seqs],
    )
    assert_equal(got.positions, want["positions"])
    assert_equal(got.valid_mask, want["valid_token_mask"])
    assert_equal(got.window_store_slots, want["slot_mapping_store_swa"])
    assert_equal(got.window_reads, want["kv_swa_index_offset_len"])
    assert_equal(got.state_slots, want["state_block_idx"])
    assert_equal(got.context_lengths, want["context_lens"])
    assert_equal(got.query_indices, want["query_indices"])
    assert list(got.block_tables.shape) == want["block_tables"]["shape"]
    for row, prefix in zip(got.block_tables.tolist(), want["block_tables"]["valid_prefix_rows"], strict=True):
        assert row[: len(prefix)] == prefix
    for ratio in ratios:
        assert_equal(got.compressed_positions[ratio], want["positions_c"][str(ratio)])
        assert_equal(got.compressed_store_slots[ratio], want["slot_mapping_store_ca"][str(ratio)])
        if ratio in given["sparse_compress_ratios"]:
            assert_equal(got.visible_entries[ratio], want["klen"][str(ratio)])
        else:
            width = given["max_num_blocks"] * given["block_size"] // ratio
            pairs = np.stack((np.arange(got.positions.size) * width, got.visible_entries[ratio]), axis=1)
            assert_equal(pairs, want["kv_ca_index_offset_len"][str(ratio)])


@pytest.mark.parametrize("case", range(len(PROMPT)))
def test_prefill_arrays_are_those_of_the_recorded_model_inputs(case: int) -> None:
    given, want = PROMPT[case]["input"], PROMPT[case]["output"]
    ratios = sorted([*given["dense_compress_ratios"], *given["sparse_compress_ratios"]])
    seqs = given["seqs"]
    got = build_prefill_metadata(
        MetadataShape(given["block_size"], given["window_size"], given["swa_block_size"], tuple(ratios)),
        [seq["q"] for seq in seqs],
        [seq["k"] for seq in seqs],
        [seq["state"] for seq in seqs],
        *packed([seq["blocks"] for seq in seqs]),
        [seq.get("valid_start", 0) for seq in seqs],
    )
    assert_equal(got.positions, want["positions"])
    assert_equal(got.query_offsets, want["cu_seqlens_q"])
    assert_equal(got.context_offsets, want["cu_seqlens_k"])
    assert_equal(got.state_slots, want["state_block_idx"])
    assert_equal(got.window_store_slots, want["slot_mapping_store_swa"])
    assert_equal(got.window_segments, want["load_segments_swa"])
    assert got.window_segments[:, 2].sum() - got.window_segments[:, 1].sum() == want["total_k_swa"]
    assert_equal(got.window_pivots, want["kv_swa_full_index_pivots"])
    for ratio in ratios:
        name = str(ratio)
        assert_equal(got.compressed_offsets[ratio], want["cu_compressed_seqlens_q"][name])
        assert_equal(got.compressed_positions[ratio], want["positions_c"][name])
        assert_equal(got.compressed_store_slots[ratio], want["slot_mapping_store_ca"][name])
        assert_equal(got.compressed_segments[ratio], want["load_segments_ca"][name])
        assert got.num_compressed_rows[ratio] == want["total_k_compressed"][name]
        if ratio in given["sparse_compress_ratios"]:
            assert_equal(got.entry_begin[ratio], want["ks"][name])
            assert_equal(got.entry_end[ratio], want["ke"][name])
        else:
            pairs = np.stack((got.entry_begin[ratio], got.entry_end[ratio] - got.entry_begin[ratio]), axis=1)
            assert_equal(pairs, want["kv_ca_index_offset_len"][name])


SHAPE = MetadataShape(8, 4, 9, (1, 2))


@st.composite
def batches(draw: st.DrawFn, longest_query: int) -> dict[str, Any]:
    count = draw(st.integers(1, 5))
    contexts = [draw(st.integers(1, 60)) for _ in range(count)]
    queries = [draw(st.integers(1, min(context, longest_query))) for context in contexts]
    blocks = iter(draw(st.permutations(range(1, 60))))
    tables = [[next(blocks) for _ in range(-(-context // 8))] for context in contexts]
    slots = draw(st.permutations(range(1, 9)))[:count]
    return {"queries": queries, "contexts": contexts, "tables": tables, "slots": slots}


@settings(max_examples=80, deadline=None)
@given(batch=batches(6), data=st.data())
def test_the_device_form_of_decode_metadata_equals_the_host_form(batch: dict[str, Any], data: st.DataObject) -> None:
    placeholders = [data.draw(st.booleans()) for _ in batch["queries"]]
    offsets, ids = packed(batch["tables"])
    host = build_decode_metadata(
        SHAPE, batch["queries"], batch["contexts"], batch["slots"], offsets, ids, 10, placeholders
    )
    device = decode_metadata(
        *(torch.tensor(batch[name], dtype=torch.int32) for name in ("queries", "contexts", "slots")),
        torch.tensor(ids, dtype=torch.int32),
        torch.tensor(offsets, dtype=torch.int32),
        torch.tensor(placeholders),
        tokens_per_block=8,
        window_size=4,
        ring_length=9,
        ratios=(1, 2),
        table_width=10,
    )
    for name in DecodeArrays.__slots__:
        want, got = getattr(host, name), getattr(device, name)
        for key in want if isinstance(want, dict) else [None]:
            left, right = (want, got) if key is None else (want[key], got[key])
            assert left.tolist() == right.tolist(), name
            assert name == "positions" or str(left.dtype) == str(right.dtype).removeprefix("torch.")


@settings(max_examples=80, deadline=None)
@given(batch=batches(60), data=st.data())
def test_prefill_arrays_name_exactly_the_visible_positions(batch: dict[str, Any], data: st.DataObject) -> None:
    count = len(batch["queries"])
    firsts = [context - query for context, query in zip(batch["contexts"], batch["queries"], strict=True)]
    valid = [data.draw(st.integers(0, first)) for first in firsts]
    got = build_prefill_metadata(
        SHAPE, batch["queries"], batch["contexts"], batch["slots"], *packed(batch["tables"]), valid
    )
    history = segments_to_slots(torch.from_numpy(got.window_segments), count * 4, 9).tolist()
    window = expand_window_pivots(torch.from_numpy(got.window_pivots), 4).tolist()
    paged = {
        r: segments_to_slots(torch.from_numpy(got.compressed_segments[r]), got.num_compressed_rows[r], 8 // r).tolist()
        for r in (1, 2)
    }
    row = 0
    for seq in range(count):
        slot, first = batch["slots"][seq], firsts[seq]
        table = batch["tables"][seq]
        for position in range(first, batch["contexts"][seq]):
            assert got.positions[row] == position
            visible = range(max(position - 3, valid[seq], 0), position + 1)
            want = [
                4 * seq + p - first + 4 if p < first else 4 * count + int(got.query_offsets[seq]) + p - first
                for p in visible
            ]
            assert [index for index in window[row] if index >= 0] == want
            for p, index in zip(visible, want, strict=True):
                if p < first:
                    assert history[index] == slot * 9 + p % 9
            is_stored = position >= batch["contexts"][seq] - 9
            assert got.window_store_slots[row] == (slot * 9 + position % 9 if is_stored else -1)
            for ratio in (1, 2):
                entries = paged[ratio][got.entry_begin[ratio][row] : got.entry_end[ratio][row]]
                t = 8 // ratio
                assert entries == [table[c // t] * t + c % t for c in range((position + 1) // ratio)]
            row += 1
        for ratio in (1, 2):
            t = 8 // ratio
            begin, end = got.compressed_offsets[ratio][seq : seq + 2]
            new = list(range(first // ratio, batch["contexts"][seq] // ratio))
            assert end - begin == max(1, len(new))
            assert got.compressed_positions[ratio][begin:end].tolist() == ([c * ratio for c in new] or [0])
            assert got.compressed_store_slots[ratio][begin:end].tolist() == (
                [table[c // t] * t + c % t for c in new] or [-1]
            )
    assert row == got.positions.size


def test_an_empty_plan_gives_empty_arrays() -> None:
    prefill = build_prefill_metadata(SHAPE, [], [], [], [0], [])
    assert prefill.positions.size == 0
    assert prefill.query_offsets.tolist() == [0]
    assert build_decode_metadata(SHAPE, [], [], [], [0], [], 64).block_tables.shape == (0, 64)


def test_the_placeholder_row_reads_and_writes_slot_and_block_zero() -> None:
    got = build_decode_metadata(SHAPE, [1], [1], [0], [0, 1], [0], 64, [True])
    assert got.query_indices.tolist() == [PLACEHOLDER_QUERY]
    assert got.window_store_slots.tolist() == [0]
    assert got.compressed_store_slots[1].tolist() == [0]
    assert got.compressed_store_slots[2].tolist() == [-1]


def test_without_a_window_nothing_is_stored_or_read() -> None:
    shape = MetadataShape(8, 0, 0, (1,))
    decode = build_decode_metadata(shape, [2], [5], [1], [0, 1], [3], 1)
    assert decode.window_store_slots.tolist() == [-1, -1]
    assert decode.window_reads.tolist() == [[0, 0], [0, 0]]
    prefill = build_prefill_metadata(shape, [2], [5], [1], [0, 1], [3])
    assert prefill.window_store_slots.tolist() == [-1, -1]
    assert prefill.window_segments.shape == (0, 4)
    assert not prefill.window_pivots.any()


def test_field_names_are_those_of_the_forward_pass() -> None:
    model = pytest.importorskip("thalweg.model.metadata")
    decode = build_decode_metadata(SHAPE, [1], [1], [1], [0, 1], [1], 64)
    prefill = build_prefill_metadata(SHAPE, [1], [1], [1], [0, 1], [1])
    assert set(decode.metadata()) == set(model.DecodeMetadata.__slots__)
    assert set(prefill.metadata()) == set(model.PrefillMetadata.__slots__)
    assert isinstance(prefill, PrefillArrays)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MetadataShape(8, 4, 9, (3,)), "ratios has 3"),
        (lambda: MetadataShape(8, 4, 3, (1,)), "ring_length is 3; window_size 4"),
        (lambda: build_decode_metadata(SHAPE, [1], [1, 2], [1], [0, 1], [1], 64), "context_lengths has 2 entries"),
        (lambda: build_decode_metadata(SHAPE, [1], [1], [1], [0], [1], 64), "block_offsets has 1 entries"),
        (lambda: build_decode_metadata(SHAPE, [0], [1], [1], [0, 1], [1], 64), "row 0 has query length 0"),
        (lambda: build_prefill_metadata(SHAPE, [1, 3], [1, 2], [1, 2], [0, 1, 2], [1, 2]), "row 1 has query length 3"),
        (
            lambda: build_decode_metadata(SHAPE, [1], [9], [1], [0, 1], [1], 64),
            "row 0 has 1 blocks; its 9 tokens need 2",
        ),
        (lambda: build_decode_metadata(SHAPE, [1], [9], [1], [0, 2], [1, 2], 1), "table_width is 1"),
        (
            lambda: build_decode_metadata(SHAPE, [1], [1], [1], [0, 1], [1], 64, [True, False]),
            "is_placeholder has 2 entries",
        ),
        (
            lambda: build_prefill_metadata(SHAPE, [1], [1], [1], [0, 1], [1], [0, 0]),
            "window_valid_start has 2 entries",
        ),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
