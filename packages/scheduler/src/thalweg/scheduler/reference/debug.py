"""The scheduler's inner state in plain values, for traces and tests."""

from __future__ import annotations

from typing import Any

from thalweg.scheduler.reference.sequence import Sequence
from thalweg.scheduler.reference.state import State


def describe(state: State, next_step: int) -> dict[str, Any]:
    """Everything that decides what happens next; both cores return equal dictionaries.

    step                number of the next plan
    decode_step         decode steps since the last prefill
    waiting, prompted, running    sequence ids; waiting in planning order
    free_blocks, free_state_slots, free_draft_slots    ids in the order in which they will be handed out
    num_preempted, num_aborted    running totals
    sequences           id -> the fields below, for every sequence that stands in a queue or in a step whose result is
                        due, or still owns memory

    status, len, prompt_len, num_computed, total_inflight, last_inflight, blocks, state_slot (-1 = none), draft_slot
    (0 = none), has_draft_info, num_drafts, schedule_count, process_count, structured_status, is_schedulable
    """
    return {
        "step": next_step,
        "decode_step": state.decode_step,
        "waiting": [sequence.sequence_id for sequence in state.waiting],
        "prompted": [sequence.sequence_id for sequence in state.prompted],
        "running": [sequence.sequence_id for sequence in state.running],
        "free_blocks": state.memory.blocks.free_ids(),
        "free_state_slots": state.memory.state_slots.free_ids(),
        "free_draft_slots": state.memory.draft_slots.free_ids(),
        "num_preempted": state.num_preempted,
        "num_aborted": state.num_aborted,
        "sequences": {sequence_id: _describe(sequence) for sequence_id, sequence in state.sequences.items()},
    }


def _describe(sequence: Sequence) -> dict[str, Any]:
    return {
        "status": int(sequence.status),
        "len": sequence.length,
        "prompt_len": sequence.prompt_length,
        "num_computed": sequence.num_computed,
        "total_inflight": sequence.total_inflight,
        "last_inflight": sequence.last_inflight,
        "blocks": list(sequence.blocks),
        "state_slot": sequence.state_slot,
        "draft_slot": sequence.draft_slot,
        "has_draft_info": sequence.has_draft_info,
        "num_drafts": sequence.num_drafts,
        "schedule_count": sequence.schedule_count,
        "process_count": sequence.process_count,
        "structured_status": sequence.structured_status,
        "is_schedulable": sequence.is_schedulable,
    }
