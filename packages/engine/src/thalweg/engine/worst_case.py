"""The largest steps of a deployment as plans, to find out how much memory they take.

Their sequences share one cache block and one state slot, which exist in any cache: what they read is nonsense, and how
much of it they read is what counts.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from thalweg.engine.sampling_row import SamplingRow, SequenceToSample
from thalweg.interfaces import StepKind, StepPlan, StepStats
from thalweg.scheduler.config import SchedulerConfig

BLOCK = STATE_SLOT = 1
"""What all sequences share; 0 is the null block, and the null slot."""
_NO_STATS = StepStats(**dict.fromkeys((field.name for field in dataclasses.fields(StepStats)), 0))


def worst_prefill(scheduler: SchedulerConfig, num_tokens: int, block_size: int, tail_length: int) -> StepPlan:
    """`max_num_seqs` chunks that share a budget of `num_tokens`; one of them ends the longest prompt there is.

    The others reach as far as `prefill_max_sum_seqlen_k` allows in all, where that is set: no step has a larger sum.
    Where it is not set they are whole prompts, though with chunks or shared prefixes each of them could end one of
    `max_model_len` as well: the sum of contexts is then no bound of what a step may reach, that of queries is.
    """
    count = min(scheduler.max_num_seqs, num_tokens)
    queries = np.full(count, num_tokens // count, np.int32)
    queries[: num_tokens % count] += 1
    queries = np.minimum(queries, scheduler.max_model_len)
    contexts = queries.copy()
    contexts[0] = scheduler.max_model_len
    if scheduler.prefill_max_sum_seqlen_k != SchedulerConfig().prefill_max_sum_seqlen_k:
        _raise_contexts(contexts, scheduler.prefill_max_sum_seqlen_k, scheduler.max_model_len)
    return _plan(StepKind.PREFILL, queries, contexts, 0, block_size, tail_length)


def worst_decode(scheduler: SchedulerConfig, draft_length: int, block_size: int, tail_length: int) -> StepPlan:
    """`max_num_seqs` sequences of the greatest length that verify all their drafts."""
    queries = np.full(scheduler.max_num_seqs, 1 + draft_length, np.int32)
    contexts = np.full(scheduler.max_num_seqs, max(scheduler.max_model_len, 1 + draft_length), np.int32)
    return _plan(StepKind.DECODE, queries, contexts, draft_length, block_size, tail_length)


def costly_rows(count: int) -> list[SequenceToSample]:
    """As many sequences that are drawn with every option there is, and report 20 alternatives."""
    row = SamplingRow(
        temperature=1.0,
        top_p=0.99,
        min_p=1e-3,
        repetition_penalty=1.01,
        presence_penalty=0.01,
        min_tokens=2,
        forbidden_ids=np.zeros(1, np.int64),
        bias_ids=np.zeros(1, np.int64),
        biases=np.zeros(1, np.float32),
        num_logprobs=20,
    )
    return [SequenceToSample(row.with_seed(seed), prompt_token_ids=(0,)) for seed in range(count)]


def _raise_contexts(contexts: NDArray[np.int32], total: int, longest: int) -> None:
    """Lengthen one context after the other, in place, while their sum allows it."""
    left = total - int(contexts.sum())
    for index in range(1, contexts.size):
        added = min(max(left, 0), longest - int(contexts[index]))
        contexts[index] += added
        left -= added


def _plan(
    kind: StepKind,
    queries: NDArray[np.int32],
    contexts: NDArray[np.int32],
    draft_length: int,
    block_size: int,
    tail_length: int,
) -> StepPlan:
    count, is_decode = queries.size, kind is StepKind.DECODE
    num_blocks = -(-contexts // block_size)
    zeros, no_ids, no_pairs = np.zeros(count, np.int32), np.zeros(0, np.int64), np.zeros((0, 2), np.int32)
    total = int(queries.sum())
    return StepPlan(
        step=0,
        kind=kind,
        num_batched_tokens=total,
        sequence_ids=np.arange(count, dtype=np.int64),
        query_lengths=queries,
        context_lengths=contexts,
        committed_lengths=contexts - draft_length if is_decode else contexts,
        prompt_lengths=contexts - draft_length if is_decode else contexts,
        block_offsets=np.concatenate(([0], np.cumsum(num_blocks))).astype(np.int32),
        block_ids=np.full(int(num_blocks.sum()), BLOCK, np.int32),
        state_slots=zeros + STATE_SLOT,
        window_valid_start=zeros,
        tail_token_ids=np.zeros((count, tail_length), np.int32),
        token_ids=np.zeros(0 if is_decode else total, np.int32),
        next_token_ids=np.zeros(0, np.int32) if is_decode else zeros - 1,
        draft_token_ids=np.zeros((count, draft_length if is_decode else 0), np.int32),
        draft_read_slots=zeros,
        draft_write_slots=np.arange(1, 1 + count, dtype=np.int32) if is_decode and draft_length else zeros,
        previous_rows=zeros - 1,
        state_copies=no_pairs,
        block_copies=no_pairs,
        zero_state_slots=np.zeros(0, np.int32),
        finished_ids=no_ids,
        dropped_ids=no_ids,
        restarted_ids=no_ids,
        stats=_NO_STATS,
    )
