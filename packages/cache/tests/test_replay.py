"""Bounded replay: the recorded steps, a brute-force oracle of what each row sees, and choices that must be refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_testing.geometries import RELEASED
from numpy.typing import NDArray

from thalweg.cache import (
    ConsumerReplay,
    MetadataShape,
    PrefillArrays,
    ReplayMode,
    SequenceStart,
    build_consumer_metadata,
    build_prefill_metadata,
    exact_keep_tokens,
    start_after_hit,
)
from thalweg.interfaces import ConfigError

RECORDED = json.loads((Path(__file__).parent / "golden/bounded_replay/prompt_metadata.json").read_text())
MODES = (ReplayMode.MASK, ReplayMode.COMPACT)
OFF, COMPACT = ConsumerReplay.of(RELEASED, "off", 0), ConsumerReplay.of(RELEASED, "compact", 140)


def prefill_of(given: dict[str, Any]) -> tuple[MetadataShape, PrefillArrays]:
    seqs = given["seqs"]
    shape = MetadataShape(given["block"], given["window"], given["ring"], (1, 2))
    tables = [seq["block_table"] for seq in seqs]
    return shape, build_prefill_metadata(
        shape,
        [seq["seqlen_q"] for seq in seqs],
        [seq["seqlen_k"] for seq in seqs],
        [seq["state_id"] for seq in seqs],
        np.cumsum([0, *(len(table) for table in tables)]),
        [block for table in tables for block in table],
        [seq["swa_valid_start"] for seq in seqs],
    )


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: str(case["desc"]))
def test_a_step_has_the_recorded_arrays(case: dict[str, Any]) -> None:
    _, got = prefill_of(case["inputs"])
    want = case["common"]
    assert got.positions.tolist() == want["positions"]
    assert got.query_offsets.tolist() == want["cu_seqlens_q"]
    assert got.context_offsets.tolist() == want["cu_seqlens_k"]
    assert got.state_slots.tolist() == want["state_block_idx"]
    assert got.window_store_slots.tolist() == want["slot_mapping_store_swa"]
    assert got.window_segments.tolist() == want["load_segments_swa"]
    assert got.window_pivots.tolist() == want["kv_swa_full_index_pivots"]
    for ratio in (1, 2):
        name = str(ratio)
        assert got.compressed_offsets[ratio].tolist() == want["cu_compressed_seqlens_q"][name]
        assert got.compressed_positions[ratio].tolist() == want["positions_c"][name]
        assert got.compressed_store_slots[ratio].tolist() == want["slot_mapping_store_ca"][name]
        assert got.compressed_segments[ratio].tolist() == want["load_segments_ca"][name]
        assert got.num_compressed_rows[ratio] == want["total_k_compressed"][name]
        assert got.entry_begin[ratio].tolist() == want["ks"][name]
        assert got.entry_end[ratio].tolist() == want["ke"][name]


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: str(case["desc"]))
def test_consumer_layers_have_the_recorded_arrays(case: dict[str, Any]) -> None:
    given, want = case["inputs"], case["compact"]
    shape, step = prefill_of(given)
    lengths = [seq["data_len"] for seq in given["seqs"]]
    valid = [seq["swa_valid_start"] for seq in given["seqs"]]
    mask = build_consumer_metadata(shape, step, ConsumerReplay(ReplayMode.MASK, given["keep"]), lengths, valid)
    got = build_consumer_metadata(shape, step, ConsumerReplay(ReplayMode.COMPACT, given["keep"]), lengths, valid)
    assert mask is not None
    assert mask.query_rows is None
    assert mask.window_pivots.tolist() == case["mask"]["yoco_mask_swa_index_pivots"]
    assert mask.window_store_slots.tolist() == step.window_store_slots.tolist()
    assert got is not None
    assert got.query_rows is not None
    assert got.query_rows.tolist() == want["yoco_consumer_query_indices"]
    assert got.query_offsets.tolist() == want["yoco_consumer_cu_seqlens_q"]
    assert got.positions.size == want["yoco_consumer_total_q"]
    assert got.positions.tolist() == want["yoco_consumer_positions"]
    assert got.window_pivots.tolist() == want["yoco_consumer_swa_index_pivots"]
    assert got.window_store_slots.tolist() == want["yoco_consumer_slot_mapping_store_swa"]
    for ratio in (1, 2):
        assert got.entry_begin[ratio].tolist() == want["yoco_consumer_ks"][str(ratio)]
        assert got.entry_end[ratio].tolist() == want["yoco_consumer_ke"][str(ratio)]


def seen_positions(
    pivots: NDArray[np.int32], offsets: NDArray[np.int32], positions: NDArray[np.int64], history: NDArray[np.int64]
) -> list[list[int]]:
    """Absolute positions that every row sees; history int [N * W] is the position of each history row, -1 = zeros."""
    keys = np.concatenate((history, positions))
    assert offsets[-1] == positions.size
    return [
        [*keys[start1 : start1 + len1].tolist(), *(keys[start2 : start2 + len2].tolist() if len2 else ())]
        for start1, len1, start2, len2 in pivots.tolist()
    ]


class Prompts:
    """Prompts that are computed in random chunks, with what the rings of a producer and of a consumer layer hold."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.random, self.window = random, int(random.integers(1, 9))
        self.backtracking = int(random.integers(1, 5))
        self.shape = MetadataShape(8, self.window, self.window + self.backtracking, (1, 2))
        self.keep = self.window + self.backtracking + int(random.integers(0, 4))
        count = int(random.integers(1, 4))
        self.lengths = random.integers(1, 90, count)
        self.starts = [self._start(int(length)) for length in self.lengths]
        self.done = np.array([start.num_tokens for start in self.starts])
        self.tables = random.permutation(np.arange(1, 12 * count + 1)).reshape(count, 12)
        self.rings = {mode: np.full((count, self.shape.ring_length), -9) for mode in ("producer", *MODES)}

    def _start(self, length: int) -> SequenceStart:
        hit = int(self.random.integers(0, length // 8 + 1)) * 8
        hit = min(hit, (length - 1) // 8 * 8)
        if hit <= self.window or self.random.random() < 0.3:
            return SequenceStart()
        if self.random.random() < 0.5:
            return SequenceStart(hit - self.window, hit - self.window, hit - self.window, hit)
        return SequenceStart(hit, 0, hit, hit)

    def run(self) -> None:
        for row, start in enumerate(self.starts):  # a restored window
            held = np.arange(max(start.num_tokens - self.window, 0), start.num_tokens)
            if not start.replayed_tokens:
                self.rings["producer"][row, held % self.shape.ring_length] = held
        while (self.done < self.lengths).any():
            rows = [row for row in np.flatnonzero(self.done < self.lengths).tolist() if self.random.random() < 0.7]
            if rows:
                self._step(rows)

    def _step(self, rows: list[int]) -> None:
        first = self.done[rows]
        chunk = self.random.integers(1, np.minimum(self.lengths[rows] - first, 20) + 1)
        starts = [self.starts[row] for row in rows]
        valid = [start.window_valid_start for start in starts]
        step = build_prefill_metadata(
            self.shape,
            chunk,
            first + chunk,
            rows,
            np.arange(len(rows) + 1) * 12,
            self.tables[rows].reshape(-1),
            valid,
            [start.reused_tokens for start in starts],
        )
        self._check_entries(step, rows, first, chunk)
        low = [np.arange(self.window) + begin - self.window for begin in first]
        history = np.concatenate([np.where(p >= v, p, -1) for p, v in zip(low, valid, strict=True)])
        owner = np.repeat(np.arange(len(rows)), chunk)
        bounds = {"producer": np.array(valid)}
        consumer_first = [start.consumer_first for start in starts]
        bounds["consumer"] = np.maximum(self.lengths[rows] - self.keep, np.maximum(valid, consumer_first))
        self._check("producer", step, owner, rows, first, history, bounds["producer"])
        kept = {}
        for mode in MODES:
            replay = ConsumerReplay(mode, self.keep)
            got = build_consumer_metadata(self.shape, step, replay, self.lengths[rows], valid, consumer_first)
            assert got is not None
            query_rows = np.arange(owner.size) if got.query_rows is None else got.query_rows
            assert got.positions.tolist() == step.positions[query_rows].tolist()
            for ratio in (1, 2):
                assert got.entry_begin[ratio].tolist() == step.entry_begin[ratio][query_rows].tolist()
                assert got.entry_end[ratio].tolist() == step.entry_end[ratio][query_rows].tolist()
            kept[mode] = self._check(mode, got, owner[query_rows], rows, first, history, bounds["consumer"])
        for place, seen in kept[ReplayMode.COMPACT].items():
            assert kept[ReplayMode.MASK][place] == seen
        self.done[rows] += chunk

    def _check(
        self,
        name: Any,
        got: Any,
        owner: NDArray[np.int64],
        rows: list[int],
        first: NDArray[np.int64],
        history: NDArray[np.int64],
        bound: NDArray[np.int64],
    ) -> dict[tuple[int, int], list[int]]:
        """Every row sees [max(i - W + 1, bound), i], from rings that hold it; then the rows are stored."""
        ring, length = self.rings[name], self.shape.ring_length
        result = {}
        seen = seen_positions(got.window_pivots, got.query_offsets, got.positions, history)
        assert np.bincount(owner, minlength=len(rows)).tolist() == np.diff(got.query_offsets).tolist()
        assert np.diff(got.query_offsets).min() >= 1
        for sequence, position, positions in zip(owner.tolist(), got.positions.tolist(), seen, strict=True):
            lowest = max(position - self.window + 1, int(bound[sequence]), 0)
            assert positions == list(range(lowest, position + 1))
            for old in positions:
                if old < first[sequence]:
                    assert ring[rows[sequence], old % length] == old
            result[sequence, position] = positions
        stored = got.window_store_slots >= 0
        ring.reshape(-1)[got.window_store_slots[stored]] = got.positions[stored]
        return result

    def _check_entries(
        self, step: PrefillArrays, rows: list[int], first: NDArray[np.int64], chunk: NDArray[np.int64]
    ) -> None:
        for ratio in (1, 2):
            entries = 8 // ratio
            want: list[int] = []
            for row, begin, count in zip(rows, first.tolist(), chunk.tolist(), strict=True):
                new = range(begin // ratio, (begin + count) // ratio)
                floor = self.starts[row].reused_tokens
                slots = [self.tables[row][c // entries] * entries + c % entries for c in new]
                want += [-1 if (c + 1) * ratio <= floor else int(slot) for c, slot in zip(new, slots, strict=True)] or [
                    -1
                ]
            assert step.compressed_store_slots[ratio].tolist() == want

    def last_windows_are_whole(self) -> bool:
        """Whether both consumer rings hold all rows that decoding may read after the prompts."""
        for row, (length, start) in enumerate(zip(self.lengths.tolist(), self.starts, strict=True)):
            low = max(length - self.window - self.backtracking, start.consumer_first, 0)
            held = np.arange(low, length)
            for mode in MODES:
                if (self.rings[mode][row, held % self.shape.ring_length] != held).any():
                    return False
        return True


@pytest.mark.parametrize("seed", range(40))
def test_every_row_sees_its_window_from_the_bound_on_and_nothing_unwritten(seed: int) -> None:
    prompts = Prompts(seed)
    prompts.run()
    assert prompts.last_windows_are_whole()


def test_a_hit_inside_the_kept_range_bounds_consumers_by_their_first_position() -> None:
    start = start_after_hit(RELEASED, COMPACT, 128, has_window_state=True)
    assert start == SequenceStart(128, 0, 128, 128)
    shape = MetadataShape.of(RELEASED)
    step = build_prefill_metadata(shape, [134], [262], [1], [0, 3], [5, 6, 7], None, [128])
    got = build_consumer_metadata(shape, step, COMPACT, [262], None, [start.consumer_first])
    assert got is not None
    assert got.positions.tolist() == list(range(128, 262))
    assert not got.window_pivots[:, 1].any()
    unbounded = build_consumer_metadata(shape, step, COMPACT, [262])
    assert unbounded is not None
    assert unbounded.window_pivots[0].tolist() == [122, 6, 128, 1]  # positions 122..127: rows nobody wrote


@pytest.mark.parametrize("mode", ["mask", "compact"])
def test_a_prompt_within_the_kept_range_is_as_without_replay(mode: str) -> None:
    shape = MetadataShape.of(RELEASED)
    step = build_prefill_metadata(shape, [140], [140], [1], [0, 2], [5, 6])
    got = build_consumer_metadata(shape, step, ConsumerReplay.of(RELEASED, mode, 140), [140])
    assert got is not None
    for name in ("query_offsets", "positions", "window_store_slots", "window_pivots"):
        assert np.array_equal(getattr(got, name), getattr(step, name))


def test_without_replay_there_is_nothing_to_say() -> None:
    shape = MetadataShape.of(RELEASED)
    step = build_prefill_metadata(shape, [9], [9], [1], [0, 1], [5])
    assert build_consumer_metadata(shape, step, OFF, [9]) is None


def test_an_empty_step_and_a_model_without_a_window_give_empty_arrays() -> None:
    shape = MetadataShape.of(RELEASED)
    empty = build_consumer_metadata(shape, build_prefill_metadata(shape, [], [], [], [0], []), COMPACT, [])
    assert empty is not None
    assert empty.query_offsets.tolist() == [0]
    shape = MetadataShape(8, 0, 0, (1,))
    step = build_prefill_metadata(shape, [9], [9], [1], [0, 2], [3, 4])
    got = build_consumer_metadata(shape, step, ConsumerReplay(ReplayMode.COMPACT, 4), [9])
    assert got is not None
    assert got.positions.tolist() == [5, 6, 7, 8]
    assert not got.window_pivots.any()


def test_an_odd_hit_leaves_the_straddling_pair_to_be_written() -> None:
    shape = MetadataShape(8, 4, 9, (1, 2))
    step = build_prefill_metadata(shape, [6], [9], [1], [0, 2], [3, 4], [3], [7])
    assert step.compressed_store_slots[1].tolist() == [-1] * 4 + [31, 32]
    assert step.compressed_store_slots[2].tolist() == [-1, -1, 15]


def test_the_field_names_are_those_of_the_forward_pass() -> None:
    model = pytest.importorskip("thalweg.model.metadata")
    shape = MetadataShape.of(RELEASED)
    step = build_prefill_metadata(shape, [9], [9], [1], [0, 1], [5])
    got = build_consumer_metadata(shape, step, COMPACT, [9])
    assert got is not None
    assert set(got.metadata()) == set(model.ConsumerMetadata.__slots__)


def test_kept_tokens_that_make_the_consumers_exact() -> None:
    assert exact_keep_tokens(RELEASED) == 2541
    one = replace(RELEASED, num_layers=21, compress_ratios=RELEASED.compress_ratios[:21])
    assert exact_keep_tokens(one) == 134


def test_where_a_sequence_starts() -> None:
    assert start_after_hit(RELEASED, OFF, 0, has_window_state=True) == SequenceStart()
    start = start_after_hit(RELEASED, OFF, 256, has_window_state=False)
    assert start == SequenceStart(128, 128, 128, 256)
    assert (start.replayed_tokens, start.exact_from) == (128, 256)
    stored = start_after_hit(RELEASED, COMPACT, 256, has_window_state=True)
    assert (stored.num_tokens, stored.replayed_tokens, stored.exact_from) == (256, 0, 0)


SHAPE = MetadataShape(8, 4, 9, (1, 2))
STEP = build_prefill_metadata(SHAPE, [5], [8], [1], [0, 1], [3])
PRODUCERS: dict[str, Any] = {
    "num_layers": 20,
    "compress_ratios": (0, 0) + (2,) * 18,
    "kv_source_layers": (2, 8, 14),
    "index_key_source_layers": (2, 8, 14),
}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ConsumerReplay.of(RELEASED, "full", 140), "replay mode is 'full'; off, mask, compact"),
        (lambda: ConsumerReplay.of(RELEASED, "mask", 133), "keep_tokens is 133; with window 128 and backtracking 6"),
        (lambda: ConsumerReplay.of(RELEASED, "compact", 0), "keep_tokens is 0; .* it must be at least 134"),
        (
            lambda: ConsumerReplay.of(replace(RELEASED, **PRODUCERS), "mask", 140),
            "needs layers of ratio 1 behind others",
        ),
        (lambda: build_consumer_metadata(SHAPE, STEP, COMPACT, [7]), "sequence_lengths of row 0 is 7; .* ends at 8"),
        (lambda: build_consumer_metadata(SHAPE, STEP, COMPACT, [8, 9]), "sequence_lengths has 2 entries"),
        (lambda: build_consumer_metadata(SHAPE, STEP, COMPACT, [8], [4]), "window_valid_start of row 0 is 4"),
        (lambda: build_consumer_metadata(SHAPE, STEP, COMPACT, [8], [0], [4]), "consumer_first of row 0 is 4"),
        (
            lambda: build_prefill_metadata(SHAPE, [5], [8], [1], [0, 1], [3], [4]),
            "window_valid_start of row 0 is 4; its chunk begins at 3",
        ),
        (lambda: build_prefill_metadata(SHAPE, [5], [8], [1], [0, 1], [3], [-1]), "window_valid_start has -1"),
        (lambda: build_prefill_metadata(SHAPE, [5], [8], [1], [0, 1], [3], None, [1, 2]), "reused_lengths has 2"),
        (lambda: start_after_hit(RELEASED, OFF, 100, has_window_state=False), "hit_length is 100; a multiple of 128"),
        (lambda: start_after_hit(RELEASED, OFF, -128, has_window_state=False), "hit_length is -128"),
        (lambda: start_after_hit(RELEASED, OFF, 128, has_window_state=False), "must exceed the window, 128"),
        (lambda: start_after_hit(RELEASED, OFF, 128, has_window_state=True), "replay mode is off; a restored window"),
    ],
)
def test_a_choice_that_cannot_work_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
