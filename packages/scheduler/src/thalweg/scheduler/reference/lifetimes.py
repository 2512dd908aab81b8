"""How sequences end from outside, and when their memory goes."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from operator import index

from thalweg.interfaces import SequenceStatus
from thalweg.scheduler.reference.sequence import Sequence
from thalweg.scheduler.reference.state import State


def abort(state: State, sequence_ids: SequenceOf[int]) -> int:
    """End these sequences wherever they are; returns how many were unfinished.

    Nothing of a waiting one is in flight, so its memory goes now. A running one leaves with the next decode step.
    """
    wanted = set(map(index, sequence_ids))
    found = [sequence for sequence in _unfinished(state) if sequence.sequence_id in wanted]
    for sequence in found:
        sequence.status = SequenceStatus.FINISHED_ABORTED
    if state.is_default:
        for sequence in [*state.waiting, *state.prompted]:
            if sequence in found:
                state.free(sequence)
    state.num_aborted += len(found)
    return len(found)


def _unfinished(state: State) -> list[Sequence]:
    everybody = [*state.running, *state.waiting, *state.prompted]
    if state.is_default:
        everybody += state.sequences_in_prefill
    return [sequence for sequence in everybody if not sequence.is_finished]


def end_hold(state: State, sequence: Sequence) -> None:
    """Free what was only kept for the hold. A prefill-only engine also hands a completed prompt over with this."""
    sequence.is_held = False
    if sequence.is_kept:
        sequence.is_kept = False
        state.memory.release(sequence)
    elif state.is_prompt_engine and sequence in state.running:
        _hand_over(state, sequence)
    state.forget(sequence)


def _hand_over(state: State, sequence: Sequence) -> None:
    state.memory.release(sequence)
    is_owed_a_record = sequence.is_finished and not sequence.has_final_record
    if not (state.is_default and is_owed_a_record):
        # Otherwise the next plan drops it, and its record comes with that.
        state.running.remove(sequence)
        sequence.has_left = True
