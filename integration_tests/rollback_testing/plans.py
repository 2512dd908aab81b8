"""Step plans written by hand: a sequence, where it stands, and what is to be verified.

Letters: N rows, G draft length, R look-back of a plan, its current token included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import StepKind, StepPlan, StepStats

Ids = NDArray[np.int32]


@dataclass
class Lane:
    """The memory and the text of one sequence."""

    slot: int
    blocks: list[int]
    text: Ids
    """int32 [length] the whole text; how much of it is in the cache, a step says."""


@dataclass
class Flight:
    """The step before, as the host knew it when it launched this one without having seen its results."""

    cached: int
    """Tokens in the cache before that step."""
    drafts: Ids
    """[G] drafts attached to that step."""


@dataclass
class DecodeRow:
    """One sequence of a decode step."""

    lane: Lane
    cached: int
    """Tokens in the cache: the newest token is text[cached]."""
    drafts: Ids
    """int32 [G] of which the first `num_verified` are verified."""
    num_verified: int
    in_flight: Flight | None = None
    """Given, the host does not know the newest token yet: the device puts the row right."""


def decode_plan(rows: Sequence[DecodeRow], look_back: int, draft_length: int) -> StepPlan:
    """A decode step. Rows in flight have the same row index in the step before."""
    queries = np.array([1 + row.num_verified for row in rows], np.int32)
    flights = [row.in_flight for row in rows]
    cached = [
        row.cached if flight is None else flight.cached + draft_length + 1
        for row, flight in zip(rows, flights, strict=True)
    ]
    newest = [row.cached if flight is None else flight.cached for row, flight in zip(rows, flights, strict=True)]
    drafts = [row.drafts if flight is None else flight.drafts for row, flight in zip(rows, flights, strict=True)]
    return _plan(
        StepKind.DECODE,
        [row.lane for row in rows],
        queries,
        np.array(cached, np.int32) + queries,
        committed_lengths=np.array(newest, np.int32) + 1,
        tail_token_ids=np.array([_tail(row.lane.text, at, look_back) for row, at in zip(rows, newest, strict=True)]),
        draft_token_ids=np.array(drafts, np.int32).reshape(len(rows), draft_length),
        previous_rows=np.array([-1 if flight is None else i for i, flight in enumerate(flights)], np.int32),
    )


def prefill_plan(chunks: Sequence[tuple[Lane, int, int]], look_back: int) -> StepPlan:
    """A prefill step of chunks (lane, begin, end), each the last one of its prompt."""
    return _plan(
        StepKind.PREFILL,
        [lane for lane, _, _ in chunks],
        np.array([end - begin for _, begin, end in chunks], np.int32),
        np.array([end for _, _, end in chunks], np.int32),
        committed_lengths=np.array([end for _, _, end in chunks], np.int32),
        tail_token_ids=np.array([_tail(lane.text, begin, look_back) for lane, begin, _ in chunks]),
        token_ids=np.concatenate([lane.text[begin:end] for lane, begin, end in chunks]),
        next_token_ids=np.full(len(chunks), -1, np.int32),
    )


def copy_plan(state_copies: Sequence[tuple[int, int]], block_copies: Sequence[tuple[int, int]]) -> StepPlan:
    """A plan that only copies cache memory."""
    nothing = np.zeros(0, np.int32)
    return _plan(
        StepKind.DECODE,
        [],
        nothing,
        nothing,
        committed_lengths=nothing,
        tail_token_ids=np.zeros((0, 1), np.int32),
        state_copies=np.array(state_copies, np.int32).reshape(-1, 2),
        block_copies=np.array(block_copies, np.int32).reshape(-1, 2),
    )


def _tail(text: Ids, newest: int, look_back: int) -> Ids:
    positions = np.arange(newest - look_back + 1, newest + 1)
    return np.where(positions < 0, -1, text[np.maximum(positions, 0)]).astype(np.int32)


def _plan(kind: StepKind, lanes: Sequence[Lane], queries: Ids, contexts: Ids, **given: Any) -> StepPlan:
    count, no_ids = len(lanes), np.zeros(0, np.int64)
    fields: dict[str, Any] = {
        "step": 0,
        "kind": kind,
        "num_batched_tokens": int(queries.sum()),
        "sequence_ids": np.arange(count, dtype=np.int64),
        "query_lengths": queries,
        "context_lengths": contexts,
        "prompt_lengths": np.ones(count, np.int32),
        "block_offsets": np.cumsum([0, *(len(lane.blocks) for lane in lanes)]).astype(np.int32),
        "block_ids": np.array([block for lane in lanes for block in lane.blocks], np.int32),
        "state_slots": np.array([lane.slot for lane in lanes], np.int32),
        "window_valid_start": np.zeros(count, np.int32),
        "token_ids": np.zeros(0, np.int32),
        "next_token_ids": np.zeros(0, np.int32),
        "draft_token_ids": np.zeros((count, 0), np.int32),
        "draft_read_slots": np.zeros(count, np.int32),
        "draft_write_slots": np.zeros(count, np.int32),
        "previous_rows": np.full(count, -1, np.int32),
        "state_copies": np.zeros((0, 2), np.int32),
        "block_copies": np.zeros((0, 2), np.int32),
        "zero_state_slots": np.zeros(0, np.int32),
        "finished_ids": no_ids,
        "dropped_ids": no_ids,
        "restarted_ids": no_ids,
        "stats": StepStats(0, 0, 0, 0.0, 0.0, *[0] * 15),
    }
    return StepPlan(**(fields | given))
