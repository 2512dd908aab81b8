"""Planning a prefill step: which waiting prompts, and how much of each."""

from __future__ import annotations

from thalweg.interfaces import SequenceStatus
from thalweg.scheduler.reference.sequence import Sequence
from thalweg.scheduler.reference.state import State
from thalweg.scheduler.reference.step import PrefillBatch


def plan_prefill(state: State) -> PrefillBatch:
    """Serve the queue strictly in order: the first sequence that cannot be served now ends the batch."""
    batch = empty_prefill(state)
    num_running = len(state.running)
    context_budget = state.config.prefill_max_sum_seqlen_k
    while (sequence := state.waiting.head()) is not None:
        if sequence.is_finished:
            state.waiting.take(sequence)
            batch.dropped.append(sequence)
            continue
        if not sequence.is_schedulable:
            break
        if not sequence.blocks:
            if _can_never_run(state, sequence):
                state.waiting.take(sequence)
                state.end(sequence, _refusal(state, sequence))
                batch.dropped.append(sequence)
                continue
            if not state.memory.can_start(sequence):
                break
        if num_running + 1 > state.config.max_num_seqs or context_budget < sequence.length:
            break
        chunk = _chunk_length(state, sequence, batch.num_batched_tokens)
        if chunk == 0:
            break
        if not sequence.blocks and not state.memory.start(sequence):
            break
        is_last = _commit(state, batch, sequence, chunk)
        context_budget -= sequence.length
        num_running += is_last
        if not is_last and not state.is_prompt_engine:
            break
    return batch


def empty_prefill(state: State) -> PrefillBatch:
    """A step without rows still reports who was aborted meanwhile."""
    return PrefillBatch(dropped=state.drop_finished() if state.is_default else [])


def _can_never_run(state: State, sequence: Sequence) -> bool:
    return sequence.length > state.max_prompt_length or state.memory.needs_more_than_all(sequence)


def _refusal(state: State, sequence: Sequence) -> SequenceStatus:
    if state.is_default and sequence.num_output > 0:
        # Its prompt was fine; it outgrew the pool and was preempted.
        return SequenceStatus.FINISHED_PREEMPTED
    return SequenceStatus.FINISHED_IGNORED


def _chunk_length(state: State, sequence: Sequence, num_batched_tokens: int) -> int:
    """Tokens of this sequence for the step, 0 when it has to wait for another one."""
    alignment = state.sizes.chunk_alignment
    rest = sequence.length - sequence.num_computed
    room = (state.sizes.max_num_batched_tokens - num_batched_tokens) // alignment * alignment
    shortest = max(state.config.lookahead_tokens, 1)
    chunk = min(rest, room)
    if state.is_default:
        chunk = _cut_at_checkpoint(state, sequence, chunk, shortest)
    else:
        chunk = _consume_checkpoint(sequence, chunk)
    if chunk < rest and not state.config.chunked_prefill:
        return 0
    if chunk < shortest and not (state.is_default and chunk == rest):
        return 0
    return chunk


def _cut_at_checkpoint(state: State, sequence: Sequence, chunk: int, shortest: int) -> int:
    """End the chunk at the first checkpoint inside it; one that no chunk may end at is passed over."""
    if state.config.chunked_prefill:
        for checkpoint in sequence.checkpoints:
            cut = checkpoint - sequence.num_computed
            if shortest <= cut <= chunk:
                return cut
    return chunk


def _consume_checkpoint(sequence: Sequence, chunk: int) -> int:
    """Policy "reference": the checkpoint is used up even when the chunk is then refused."""
    checkpoints = sequence.checkpoints
    while checkpoints and checkpoints[0] <= sequence.num_computed:
        checkpoints.popleft()
    if checkpoints and checkpoints[0] <= sequence.num_computed + chunk:
        return checkpoints.popleft() - sequence.num_computed
    return chunk


def _commit(state: State, batch: PrefillBatch, sequence: Sequence, chunk: int) -> bool:
    """Move a waiting sequence into the batch. True when this chunk ends its prompt."""
    state.waiting.take(sequence)
    alignment = state.sizes.chunk_alignment
    batch.num_batched_tokens += -(-chunk // alignment) * alignment
    batch.rows.append((sequence, chunk))
    end = sequence.num_computed + chunk
    while sequence.checkpoints and sequence.checkpoints[0] <= end:
        sequence.checkpoints.popleft()
    if end < sequence.length:
        return False
    sequence.status = SequenceStatus.RUNNING
    state.memory.start_running(sequence)
    return True
