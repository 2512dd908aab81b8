"""Rows over context-parallel ranks: the recorded indices, and that they put every row where it is looked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg.cache import boundary_exchange, mirror_length, mirror_rows
from thalweg.interfaces import ConfigError

GOLDEN = Path(__file__).parent / "golden"
CACHE = json.loads((GOLDEN / "cache/cp_mirror_and_boundary.json").read_text())
MIRROR = json.loads((GOLDEN / "parallel/cp_mirror.json").read_text())
BOUNDARY = json.loads((GOLDEN / "parallel/cp_replay_boundary.json").read_text())
PROMPTS = json.loads((GOLDEN / "bounded_replay/prompt_metadata.json").read_text())


def check_rank(rank: int, want: dict[str, Any], reverse: list[int], lengths: Any, size: int, ratios: list[int]) -> None:
    queries, contexts = lengths
    got = mirror_rows(queries, contexts, size, rank, ratios)
    assert got.rows.tolist() == want["mirror_index"]
    assert got.gathered.tolist() == reverse
    assert [got.entry_begin[ratio].tolist() for ratio in ratios] == want["ks"]
    assert [got.entry_end[ratio].tolist() for ratio in ratios] == want["ke"]
    assert mirror_length(queries, size) == got.rows.size


@pytest.mark.parametrize("case", CACHE["mirror"])
def test_a_rank_has_the_recorded_rows(case: dict[str, Any]) -> None:
    lengths = case["seq_lens"], case["seq_ks"]
    for rank, want in enumerate(case["ranks"]):
        check_rank(rank, want, want["reverse_index"], lengths, case["cp_size"], case["compress_ratios"])


@pytest.mark.parametrize("case", MIRROR)
def test_a_rank_has_the_recorded_rows_of_a_batch(case: dict[str, Any]) -> None:
    lengths = case["seqlens_q"], case["seqlens_k"]
    for rank, want in enumerate(case["ranks"]):
        check_rank(rank, want, case["reverse_index"], lengths, case["cp_size"], case["ratios"])
    assert mirror_length(case["seqlens_q"], case["cp_size"]) == case["output_len"]


@pytest.mark.parametrize("case", CACHE["boundary"])
def test_a_rank_contributes_the_recorded_rows(case: dict[str, Any]) -> None:
    got = boundary_exchange(case["seq_lens"], case["keep_lens"], case["cp_size"])
    assert [[row for row in rows if row >= 0] for rows in got.contributed.tolist()] == case["contrib_index_per_rank"]
    assert got.gathered.tolist() == case["gathered_reverse_index"]
    assert got.contributed.shape[1] == case["contrib_pad_len"]


@pytest.mark.parametrize("case", BOUNDARY)
def test_contributions_are_padded_as_recorded(case: dict[str, Any]) -> None:
    got = boundary_exchange(case["seqlens_q"], case["keep_lens"], case["cp_size"])
    assert got.contributed.tolist() == case["contrib_index_per_rank"]
    assert got.gathered.tolist() == case["gathered_reverse_index"]
    assert mirror_length(case["keep_lens"], case["cp_size"]) == case["compact_mirror_len"]


@pytest.mark.parametrize("case", PROMPTS, ids=lambda case: str(case["desc"]))
def test_the_scalars_of_a_step_are_the_recorded_ones(case: dict[str, Any]) -> None:
    size = case["inputs"].get("cp", 1)
    lengths = [seq["seqlen_q"] for seq in case["inputs"]["seqs"]]
    kept = np.diff(case["compact"]["yoco_consumer_cu_seqlens_q"])
    assert mirror_length(lengths, size) == case["common"]["cp_mirror_len"]
    if size > 1:
        assert mirror_length(kept, size) == case["compact"]["yoco_consumer_cp_mirror_len"]
        width = boundary_exchange(lengths, kept, size).contributed.shape[1]
        assert width == case["compact"]["yoco_consumer_cp_contrib_pad_len"]


@pytest.mark.parametrize("seed", range(20))
def test_rows_come_back_in_the_order_of_the_step(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 40, random.integers(1, 5))
    kept = random.integers(1, lengths + 1)
    size, total = int(random.choice([1, 2, 4])), int(lengths.sum())
    ranks = [mirror_rows(lengths, lengths, size, rank, [1]) for rank in range(size)]
    everyone = np.concatenate([rank.rows for rank in ranks])
    assert everyone[ranks[0].gathered].tolist() == list(range(total))
    exchange = boundary_exchange(lengths, kept, size)
    buffer = np.concatenate(
        [np.where(give >= 0, rank.rows[give], -7) for rank, give in zip(ranks, exchange.contributed, strict=True)]
    )
    want = [row for end, keep in zip(np.cumsum(lengths), kept, strict=True) for row in range(end - keep, end)]
    assert buffer[exchange.gathered].tolist() == want


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mirror_length([3], 0), "num_ranks is 0"),
        (lambda: mirror_rows([3], [3], 2, 2, [1]), r"rank is 2; 0\.\.1"),
        (lambda: boundary_exchange([3], [4], 2), r"keep_lengths is \[4\]; 1 to \[3\]"),
        (lambda: boundary_exchange([3], [0], 2), r"keep_lengths is \[0\]"),
        (lambda: boundary_exchange([3, 4], [2], 2), "one per sequence"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
