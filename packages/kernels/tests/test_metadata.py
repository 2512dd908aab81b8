"""Index arithmetic: recorded metadata and expansions, and what must be refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference import metadata

GOLDEN = Path(__file__).parent / "golden"


def read(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


def run_decode(given: dict[str, Any], ring: int, width: int, fill: int = 0) -> metadata.DecodeRows:
    total = sum(given["seqlens_q"])
    return metadata.decode_metadata(
        torch.tensor(given["seqlens_q"], dtype=torch.int32),
        torch.tensor(given["seqlens_k"], dtype=torch.int32),
        torch.tensor(given["state_ids"], dtype=torch.int32),
        torch.tensor(given["block_tables"], dtype=torch.int32),
        torch.tensor(given["block_table_offsets"], dtype=torch.int32),
        torch.tensor(given["is_placeholder"]),
        tokens_per_block=given["block_size"],
        window_size=given["window"],
        ring_length=ring,
        ratios=[1, 2],
        table_width=width,
        num_queries=total,
        block_tables=torch.full((total, width), fill, dtype=torch.int32),
    )


@pytest.mark.parametrize("case", [0, 1])
def test_decode_metadata_expands_as_recorded(case: int) -> None:
    record = read("cache/decode_metadata.json")[case]
    given, want = record["inputs"], record["out"]
    got = run_decode(given, given["ring"], given["max_num_blocks"], given["unwritten_block_table_value"])
    assert given["dense_ratios"] == []
    assert got.positions.tolist() == want["positions"]
    assert got.valid_mask.tolist() == want["valid_token_mask"]
    assert got.context_lengths.tolist() == want["context_lens"]
    assert got.query_indices.tolist() == want["query_indices"]
    assert got.state_slots.tolist() == want["state_block_idx_out"]
    assert got.block_tables.tolist() == want["block_tables_out"]
    assert got.window_reads.tolist() == want["kv_swa_index_offset_len"]
    assert got.window_store_slots.tolist() == want["slot_mapping_store_swa"]
    for row, ratio in enumerate(given["ca_ratios"]):
        assert got.visible_entries[ratio].tolist() == want["klen"][row]
        assert got.compressed_positions[ratio].tolist() == want["positions_c"][row]
        assert got.compressed_store_slots[ratio].tolist() == want["slot_mapping_store_ca"][row]
    for tensor in (got.positions, got.window_reads, got.block_tables, got.visible_entries[1], got.query_indices):
        assert tensor.dtype == torch.int32


def test_decode_metadata_of_the_model_vectors() -> None:
    record = read("model/decode_metadata.json")
    got = run_decode(record, record["swa_block_size"], 4)
    assert got.positions.tolist() == record["positions"]
    assert got.valid_mask.tolist() == record["valid_token"]
    assert got.context_lengths.tolist() == record["context_lens"]
    assert got.window_reads.tolist() == record["swa_offset_len"]
    assert got.window_store_slots.tolist() == record["slot_store_swa"]
    assert got.query_indices.tolist() == record["query_seq_id"]
    for row, ratio in enumerate(record["ratios"]):
        assert got.visible_entries[ratio].tolist() == record["klen"][row]
        assert got.compressed_positions[ratio].tolist() == record["positions_c"][row]
        assert got.compressed_store_slots[ratio].tolist() == record["slot_store_compressed"][row]


def test_decode_metadata_finds_the_number_of_queries_itself() -> None:
    lengths, contexts = torch.tensor([2, 1]), torch.tensor([5, 1])
    got = metadata.decode_metadata(
        lengths,
        contexts,
        torch.tensor([3, 0]),
        torch.tensor([9, 0]),
        torch.tensor([0, 1, 2]),
        torch.tensor([False, True]),
        tokens_per_block=8,
        window_size=4,
        ring_length=9,
        ratios=[2],
        table_width=2,
    )
    assert got.positions.tolist() == [3, 4, 0]
    assert got.block_tables.tolist() == [[9, 0], [9, 0], [0, 0]]
    assert got.query_indices.tolist() == [0, 0, metadata.PLACEHOLDER_QUERY]


@pytest.mark.parametrize("name", ["swa_decode", "swa_decode_134"])
def test_window_reads_expand_as_recorded(name: str) -> None:
    case = read("cache/indices.json")[name]
    got = metadata.expand_window_reads(torch.tensor(case["offset_len"]), case["window"], case["ring"])
    assert got.tolist() == case["out"]


def test_dense_block_entries_expand_as_recorded() -> None:
    case = read("cache/indices.json")["ca_decode"]
    got = metadata.expand_block_entries(
        torch.tensor(case["offset_len"]), torch.tensor(case["block_tables"]), case["token_per_block"], case["width"]
    )
    assert got.tolist() == case["out"]


def test_ranges_expand_as_recorded() -> None:
    case = read("cache/indices.json")["ca_prefill"]
    assert metadata.expand_ranges(torch.tensor(case["offset_len"]), case["width"]).tolist() == case["out"]


def test_window_pivots_expand_as_recorded() -> None:
    case = read("cache/indices.json")["expand_swa_index"]
    assert metadata.expand_window_pivots(torch.tensor(case["pivots"]), case["width"]).tolist() == case["out"]


def test_index_lists_are_joined_as_recorded() -> None:
    case = read("cache/indices.json")["kv_index_cat"]
    got = metadata.cat_kv_indices(
        torch.tensor(case["kv_index"]), torch.tensor(case["kv_ca_index"]), case["total_k_swa"] + case["total_k"]
    )
    assert got.tolist() == case["out"]


def test_selected_entries_become_slots_as_recorded() -> None:
    case = read("cache/indices.json")["convert_kv_index"]
    got = metadata.topk_to_slots(
        torch.tensor(case["topk"]),
        torch.tensor(case["context_lens"]),
        torch.tensor(case["block_tables"]),
        case["block_size"],
    )
    assert got.tolist() == case["out"]


def test_the_kernel_contract_vectors_of_index_lists() -> None:
    with np.load(GOLDEN / "kernels/kv_indices.npz") as archive:
        data = {key: torch.from_numpy(archive[key]) for key in archive.files}
    shift = int(data["total_k_swa"]) + int(data["total_k"])
    assert torch.equal(metadata.cat_kv_indices(data["swa"], data["ca"], shift), data["cat"])
    got = metadata.topk_to_slots(data["topk"], data["context_lens"], data["block_tables"], int(data["block_size"]))
    assert torch.equal(got, data["physical"])


def test_an_empty_column_among_the_visible_ones_stays_empty() -> None:
    got = metadata.topk_to_slots(torch.tensor([[3, -1]]), torch.tensor([4]), torch.tensor([[7]]), 8)
    assert got.tolist() == [[59, -1]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metadata.expand_window_reads(torch.zeros(3), 4, 9), "window_reads has shape"),
        (lambda: metadata.expand_window_pivots(torch.zeros(3, 2), 4), "pivots has shape"),
        (lambda: metadata.expand_ranges(torch.zeros(3, 3), 4), "offset_lengths has shape"),
        (
            lambda: metadata.expand_block_entries(torch.tensor([[0, 9]]), torch.tensor([[1]]), 8, 9),
            "beyond the 1 cells",
        ),
        (
            lambda: metadata.topk_to_slots(torch.tensor([[8]]), torch.tensor([9]), torch.tensor([[1]]), 8),
            "cell 1; block_tables has 1",
        ),
        (
            lambda: metadata.topk_to_slots(torch.tensor([[8]]), torch.tensor([[9]]), torch.tensor([[1]]), 8),
            "do not go together",
        ),
        (lambda: run_decode(read("cache/decode_metadata.json")[0]["inputs"], 134, 1), "table_width is 1"),
    ],
)
def test_bad_input_of_the_index_arithmetic_is_named(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
