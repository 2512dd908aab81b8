"""A device in miniature: it executes plans literally, keeps a cache of its own and notices every wrong byte.

A cache entry is the number that stands for all tokens up to its position (`Stream.history`), so that an entry of
another sequence, of rejected drafts or of an earlier life of the block never passes for the right one. Like a real
device it learns nothing from the host between two launches: under asynchronous scheduling it corrects lengths, ids and
verify lengths from what the step before left behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scheduler_testing.oracle import PAD, Stream, extend

from thalweg.interfaces import StepCorrection, StepKind, StepPlan, StepResult

WINDOW = 4
"""Positions that a state slot keeps: that of the query and those before it."""


@dataclass
class Launched:
    """A step whose forward has run, and later its samples."""

    plan: StepPlan
    starts: NDArray[np.int32]
    """[N] position of each row's first query token, as the device knows it."""
    query_lengths: NDArray[np.int32]
    queries: list[list[int]] = field(default_factory=list)
    """Token ids of each row's query: the anchor and the drafts, or the chunk."""
    num_accepted: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    result: StepResult | None = None
    confidences: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """[N, G] of the next drafts, whether or not the host is told."""
    verified: list[NDArray[np.float32] | None] = field(default_factory=list)
    """Confidences of the drafts that each row verified; None = unknown."""

    @property
    def is_decode(self) -> bool:
        return self.plan.kind == StepKind.DECODE


class Device:
    """Blocks, state slots and the drafter's slots of one rank."""

    def __init__(self, sizes: dict[str, int], max_num_seqs: int, streams: dict[int, Stream]) -> None:
        self.block_size = sizes["block_size"]
        self.draft_length = sizes["draft_length"]
        self.tail_length = sizes["tail_length"]
        self.streams = streams
        self.cells = np.zeros((sizes["num_blocks"], self.block_size), np.int64)
        self.rings = np.zeros((sizes["num_state_slots"], WINDOW + self.draft_length + 1), np.int64)
        self.draft_pool: list[tuple[int, int] | None] = [None] * (max_num_seqs + 1)
        self.draft_tags: dict[int, tuple[int, int]] = {}
        """What each sequence's draft slot must hold when it is read next: (sequence, step that wrote it)."""
        self.confidences: dict[int, NDArray[np.float32]] = {}
        """Of the drafts each sequence verifies next, where known."""

    def load(self, sequence_id: int, blocks: list[int], state_slot: int, length: int) -> None:
        """What a store does: fill in the cache of a sequence's first tokens."""
        histories = self.streams[sequence_id].histories(0, length)
        self._write(self._flat_cells(np.array(blocks), np.arange(length)), histories)
        ring = self.rings[state_slot]
        for position in range(max(0, length - len(ring)), length):
            ring[position % len(ring)] = histories[position]

    def forget(self, sequence_id: int) -> None:
        """A sequence that is recomputed: its drafts are gone."""
        self.draft_tags.pop(sequence_id, None)
        self.confidences.pop(sequence_id, None)

    def launch(self, plan: StepPlan, previous: Launched | None, varies_lengths: bool) -> Launched:
        """Copy what the plan says, then run the forward: write every query position, then read all before it."""
        for source, destination in plan.state_copies:
            self.rings[destination] = self.rings[source]
        for source, destination in plan.block_copies:
            if destination:
                self.cells[destination] = self.cells[source]
        launched = self._resolve(plan, previous, varies_lengths)
        self._check_tokens(launched, previous)
        tables = np.split(plan.block_ids, plan.block_offsets[1:-1]) if len(plan.sequence_ids) else []
        written: list[NDArray[np.int64]] = []
        for row, (start, query) in enumerate(zip(launched.starts.tolist(), launched.queries, strict=True)):
            written.append(self._write_row(plan, row, tables[row], start, query))
        cells = np.concatenate(written) if written else np.zeros(0, np.int64)
        assert len(np.unique(cells)) == len(cells), "two rows of a step write the same cache entry"
        for row, start in enumerate(launched.starts.tolist()):
            self._check_history(plan, row, tables[row], start)
        return launched

    def sample(
        self,
        launched: Launched,
        correction: StepCorrection | None,
        confidences: NDArray[np.float32] | None,
        row_status: NDArray[np.int8] | None,
    ) -> StepResult:
        """Verify the drafts and draft anew. confidences: those of the next drafts, None = unknown."""
        plan, width = launched.plan, self.draft_length if launched.is_decode else 0
        num_rows = len(plan.sequence_ids)
        sampled = np.zeros(num_rows, np.int32)
        accepted = np.full((num_rows, width), -1, np.int32)
        drafts = np.full((num_rows, width), PAD, np.int32)
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            stream, query = self.streams[sequence_id], launched.queries[row]
            position = int(launched.starts[row]) + len(query)
            if launched.is_decode:
                start = position - len(query)
                count = 0
                while count < len(query) - 1 and query[1 + count] == stream.token(start + 1 + count):
                    count += 1
                accepted[row, :count] = query[1 : 1 + count]
                position = start + 1 + count
                drafts[row] = stream.drafts(position + 1, width)
            sampled[row] = stream.token(position)
        launched.num_accepted = (accepted >= 0).sum(axis=1, dtype=np.int32)
        launched.verified = [
            self.confidences.get(sequence_id) if launched.is_decode else None
            for sequence_id in plan.sequence_ids.tolist()
        ]
        if launched.is_decode:
            self._use_draft_slots(launched, correction)
            self._keep_confidences(plan, confidences)
        launched.confidences = np.zeros((num_rows, width), np.float32) if confidences is None else confidences
        known = np.zeros((num_rows, 0), np.float32) if confidences is None else confidences[:, :width]
        launched.result = StepResult(plan.step, sampled, accepted, drafts, known, row_status)
        return launched.result

    def _resolve(self, plan: StepPlan, previous: Launched | None, varies_lengths: bool) -> Launched:
        """Lengths and query tokens, from the plan and from what the step in flight left on the device."""
        if plan.kind == StepKind.PREFILL:
            starts = plan.context_lengths - plan.query_lengths
            chunks = np.split(plan.token_ids, np.cumsum(plan.query_lengths)[:-1]) if len(starts) else []
            return Launched(plan, starts, plan.query_lengths, [chunk.tolist() for chunk in chunks])
        starts = plan.context_lengths - plan.query_lengths
        lengths = plan.query_lengths
        matched = plan.previous_rows >= 0
        if previous is not None and matched.any():
            assert previous.result is not None
            late = np.where(matched, self.draft_length - previous.num_accepted[plan.previous_rows], 0)
            starts = (starts - late).astype(np.int32)
            if varies_lengths:
                lengths = redistribute(plan.num_batched_tokens, plan.previous_rows, previous.confidences)
        queries = []
        for row, length in enumerate(lengths.tolist()):
            tokens = [int(plan.tail_token_ids[row, -1]), *plan.draft_token_ids[row].tolist()]
            if previous is not None and matched[row]:
                assert previous.result is not None
                source = plan.previous_rows[row]
                tokens = [int(previous.result.sampled_token_ids[source])]
                tokens += previous.result.draft_token_ids[source].tolist()
            queries.append(tokens[:length])
        return Launched(plan, starts, lengths, queries)

    def _check_tokens(self, launched: Launched, previous: Launched | None) -> None:
        """The ids that the plan shows are the sequence's own."""
        plan = launched.plan
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            stream, start, query = self.streams[sequence_id], int(launched.starts[row]), launched.queries[row]
            end = int(plan.committed_lengths[row]) if launched.is_decode else start + 1
            shown = max(0, end - self.tail_length)
            tail = [-1] * (self.tail_length - end + shown) + stream.tokens(shown, end)
            assert plan.tail_token_ids[row].tolist() == tail, f"tail of row {row}"
            if launched.is_decode:
                assert query[0] == stream.token(start), f"anchor of row {row}, sequence {sequence_id}"
                continue
            stop = start + len(query)
            assert query == stream.tokens(start, stop), f"chunk of row {row}"
            after = stream.token(stop) if stop < plan.committed_lengths[row] else -1
            assert plan.next_token_ids[row] == after, f"token after the chunk of row {row}"

    def _write_row(
        self, plan: StepPlan, row: int, table: NDArray[np.int32], start: int, query: list[int]
    ) -> NDArray[np.int64]:
        """Write a row's query tokens into blocks and state slot; returns the cache entries written."""
        end = start + len(query)
        reserved = end
        if plan.kind == StepKind.DECODE:
            reserved = int(plan.context_lengths[row] - plan.query_lengths[row]) + self.draft_length + 1
        assert end <= reserved <= len(table) * self.block_size, f"row {row} has blocks for {len(table)} * block_size"
        history = self.streams[int(plan.sequence_ids[row])].history(start - 1) if start else 0
        histories = []
        for token_id in query:
            history = extend(history, token_id)
            histories.append(history)
        cells = self._flat_cells(table, np.arange(start, end))
        self._write(cells, np.array(histories, np.int64))
        ring = self.rings[plan.state_slots[row]]
        for position in range(max(start, end - len(ring)), end):
            ring[position % len(ring)] = histories[position - start]
        return cells

    def _check_history(self, plan: StepPlan, row: int, table: NDArray[np.int32], start: int) -> None:
        sequence_id = int(plan.sequence_ids[row])
        expected = self.streams[sequence_id].histories(0, start)
        found = self.cells[table].reshape(-1)[:start]
        wrong = np.flatnonzero(found != expected)
        assert not len(wrong), f"step {plan.step}: cache entries {wrong.tolist()} of sequence {sequence_id} are wrong"
        if plan.kind == StepKind.DECODE:
            positions = np.arange(max(0, start - WINDOW + 1), start)
            ring = self.rings[plan.state_slots[row]]
            is_right = ring[positions % len(ring)] == expected[positions]
            assert is_right.all(), f"step {plan.step}: state slot of sequence {sequence_id} is wrong"

    def _flat_cells(self, table: NDArray[np.int32], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return table[positions // self.block_size].astype(np.int64) * self.block_size + positions % self.block_size

    def _write(self, cells: NDArray[np.int64], histories: NDArray[np.int64]) -> None:
        assert (cells >= self.block_size).all(), "block 0 is nobody's"
        self.cells.reshape(-1)[cells] = histories

    def _use_draft_slots(self, launched: Launched, correction: StepCorrection | None) -> None:
        """Read what the last round left for each row, then leave something for the next round."""
        plan = launched.plan
        reads, writes = plan.draft_read_slots, plan.draft_write_slots
        is_live = np.ones(len(reads), np.bool_)
        if correction is not None:
            reads, writes, is_live = correction.draft_read_slots, correction.draft_write_slots, correction.is_live
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            if is_live[row]:
                expected = self.draft_tags.get(sequence_id)
                assert bool(reads[row]) == (expected is not None), f"step {plan.step}: sequence {sequence_id}"
                assert self.draft_pool[reads[row]] == expected, f"step {plan.step}: draft slot of {sequence_id}"
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            if writes[row]:
                self.draft_pool[writes[row]] = self.draft_tags[sequence_id] = (sequence_id, plan.step)

    def _keep_confidences(self, plan: StepPlan, confidences: NDArray[np.float32] | None) -> None:
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            self.confidences.pop(sequence_id, None)
            if confidences is not None:
                self.confidences[sequence_id] = confidences[row].copy()


def redistribute(
    num_tokens: int, previous_rows: NDArray[np.int32], confidences: NDArray[np.float32]
) -> NDArray[np.int32]:
    """Verify lengths with the given sum: drafts that are likelier to be reached come first, then lower rows.

    confidences: float32 [rows of the previous step, G].
    """
    num_rows, width = len(previous_rows), confidences.shape[1]
    survival = np.zeros((num_rows, width), np.float32)
    for row, source in enumerate(previous_rows.tolist()):
        product = np.float32(1.0)
        for column in range(width if source >= 0 else 0):
            product = np.float32(product * confidences[source, column])
            survival[row, column] = product
    flat = survival.reshape(-1)
    chosen = sorted(range(flat.size), key=lambda index: (-float(flat[index]), index))[: num_tokens - num_rows]
    lengths = np.ones(num_rows, np.int32)
    for index in chosen:
        lengths[index // width] += 1
    return lengths
