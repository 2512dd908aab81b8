"""Planning a decode step: everybody who runs takes part, as far as the blocks go."""

from __future__ import annotations

from dataclasses import dataclass, field

from thalweg.interfaces import InvariantError, SequenceStatus
from thalweg.scheduler.reference.sequence import Sequence
from thalweg.scheduler.reference.state import State


@dataclass(slots=True)
class DecodeBatch:
    """What one decode step found and did to the queues."""

    rows: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
    dropped: list[Sequence] = field(default_factory=list)
    restarted: list[Sequence] = field(default_factory=list)


def plan_decode(state: State) -> DecodeBatch:
    """Remove what is finished, then serve the shortest outputs first and evict the longest when blocks run out."""
    batch = DecodeBatch()
    batch.finished = [sequence for sequence in state.running if sequence.is_finished]
    for sequence in batch.finished:
        state.memory.draft_slots.give_back(sequence)
    batch.dropped = state.drop_finished()
    state.running = [sequence for sequence in state.running if not sequence.is_finished]
    _admit_prompted(state)

    running = sorted(state.running, key=lambda sequence: -sequence.num_output)
    first, last = 0, len(running) - 1
    while first <= last:
        candidate = running[last]
        last -= 1
        if state.is_default and state.memory.needs_more_than_all(candidate):
            # Evicting others would not help, nor would recomputing it.
            _end_preempted(state, batch, candidate)
            continue
        while not (fits := _fit(state, candidate)) and first <= last:
            _preempt(state, batch, running[first])
            first += 1
        if fits:
            batch.rows.append(candidate)
        else:
            _preempt(state, batch, candidate)

    batch.rows.sort(key=lambda sequence: -sequence.length)
    state.running = list(batch.rows)
    _check_draft_slots(state)
    return batch


def _admit_prompted(state: State) -> None:
    """Let those who are ready to decode run while there is room; who is still being loaded holds nobody up."""
    for sequence in [sequence for sequence in state.prompted if sequence.is_schedulable]:
        if len(state.running) >= state.config.max_num_seqs:
            break
        state.prompted.remove(sequence)
        state.running.append(sequence)
        state.memory.start_running(sequence)
        sequence.status = SequenceStatus.RUNNING
        sequence.attach_drafts(state.padding_drafts, None)


def _fit(state: State, sequence: Sequence) -> bool:
    """Whether the sequence has all blocks for this step now."""
    if not state.is_default and state.memory.blocks.num_free == 0:
        # The old rule: nobody takes part while the pool is empty, in need of a block or not.
        return False
    return state.memory.fit(sequence)


def _preempt(state: State, batch: DecodeBatch, sequence: Sequence) -> None:
    """Take its memory; it is recomputed later unless that is off or a grammar could not be wound back.

    What a step in flight makes of it will be ignored.
    """
    if state.config.stop_preempted_request or sequence.structured_status != 0:
        _end_preempted(state, batch, sequence)
        return
    state.num_preempted += 1
    state.memory.release(sequence)
    sequence.restart()
    state.waiting.push_front(sequence)
    batch.restarted.append(sequence)


def _end_preempted(state: State, batch: DecodeBatch, sequence: Sequence) -> None:
    state.num_preempted += 1
    state.end(sequence, SequenceStatus.FINISHED_PREEMPTED)
    batch.dropped.append(sequence)


def _check_draft_slots(state: State) -> None:
    in_use = state.config.max_num_seqs - state.memory.draft_slots.num_free
    expected = len(state.running) if state.sizes.draft_length else 0
    if in_use != expected:
        raise InvariantError(f"{in_use} draft slots are in use; {expected} sequences need one")
