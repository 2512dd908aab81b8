"""What crosses the border between scheduler and engine: one plan, one result and one outcome per step.

Every array is a C-contiguous numpy array owned by the object that carries it, so two plans can be alive while the
scheduler moves on. A missing list is an empty array, never None, unless the field says so. Letters of the shapes:
N rows (sequences), Q query tokens (sum of the query lengths), G draft length, R look-back including the current token.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class StepKind(enum.IntEnum):
    """The two kinds of step; all ranks of a data-parallel group run the same kind."""

    PREFILL = 0
    DECODE = 1


class SequenceStatus(enum.IntEnum):
    """Where a sequence is; values from 3 up are final and double as the finish reason on the wire."""

    WAITING = 0
    RUNNING = 1
    SWAPPED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5
    FINISHED_IGNORED = 6
    FINISHED_PREEMPTED = 7
    FINISHED_STRUCTURED_FAILED = 8
    FINISHED_VISION_FAILED = 9

    @property
    def is_finished(self) -> bool:
        return self >= SequenceStatus.FINISHED_STOPPED


@dataclass(frozen=True, slots=True)
class StepStats:
    """Numbers of one plan, for logging; nothing decides on them."""

    sum_query_times_context: int
    """Sum over rows of query length times context length."""
    max_context_length: int
    min_context_length: int
    attention_flops: float
    """FP8-equivalent floating point operations of attention; 0 when the estimate is off."""
    total_flops: float
    num_running: int
    num_waiting: int
    num_chunked: int
    """Waiting sequences whose prompt is partly computed."""
    num_preempted: int
    """Running total of preemptions."""
    num_aborted: int
    """Running total of aborted requests."""
    num_free_blocks: int
    num_free_state_slots: int
    num_prompted: int
    """Ready to decode (forked or loaded), waiting for a place in the batch."""
    prompt_tokens_running: int
    """Sum of the prompt lengths of running sequences; those of waiting and of half-prefilled ones follow."""
    prompt_tokens_waiting: int
    prompt_tokens_chunked: int
    num_finished: int
    """Sequences of `finished_ids`."""
    finished_output_tokens: int
    finished_prompt_tokens: int
    finished_output_context: int
    """Sum over them of out * (out // 2 + prompt): what their decode rows attended to."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes. N = 0 is legal: the engine then runs its placeholder row."""

    step: int
    """0, 1, 2, ... per scheduler; results are processed in this order."""
    kind: StepKind
    num_batched_tokens: int
    """Prefill: tokens charged to the budget, aligned for context parallelism. Decode: Q."""
    sequence_ids: NDArray[np.int64]
    """[N] row order of every other array."""
    query_lengths: NDArray[np.int32]
    """[N] chunk length (prefill) or verify length (decode)."""
    context_lengths: NDArray[np.int32]
    """[N] tokens in the cache once this step ran; optimistic in asynchronous decode."""
    committed_lengths: NDArray[np.int32]
    """[N] prompt plus accepted output. A prefill row is the last chunk iff context >= committed."""
    prompt_lengths: NDArray[np.int32]
    """[N] length of the prompt as submitted; committed - prompt is the number of output tokens so far."""
    block_offsets: NDArray[np.int32]
    """[N+1] row i owns block_ids[block_offsets[i]:block_offsets[i+1]]."""
    block_ids: NDArray[np.int32]
    """[sum of blocks]"""
    state_slots: NDArray[np.int32]
    """[N]"""
    window_valid_start: NDArray[np.int32]
    """[N] first position whose window state is valid; 0 in decode."""
    tail_token_ids: NDArray[np.int32]
    """[N, R] committed tokens at positions p-R+1..p, -1 before position 0; p = context - query (prefill), len - 1
    (decode: the last column is the anchor token)."""
    token_ids: NDArray[np.int32]
    """[Q] prefill: the ids of the chunks; decode: empty."""
    next_token_ids: NDArray[np.int32]
    """[N] prefill: the token after the chunk, -1 after the last one; decode: empty."""
    draft_token_ids: NDArray[np.int32]
    """[N, G] decode: attached drafts, -1 where none; prefill: [N, 0]."""
    draft_read_slots: NDArray[np.int32]
    """[N] 0 = none."""
    draft_write_slots: NDArray[np.int32]
    """[N] 0 = none."""
    previous_rows: NDArray[np.int32]
    """[N] row of the same sequence in the decode step in flight, else -1."""
    state_copies: NDArray[np.int32]
    """[k, 2] (source, destination) slots to copy before the forward."""
    block_copies: NDArray[np.int32]
    """[k, 2] (source, destination) blocks; destination 0 = only release the source."""
    zero_state_slots: NDArray[np.int32]
    """[k] slots to clear before the forward."""
    finished_ids: NDArray[np.int64]
    """Sequences that left running with this plan; their memory is held until `release(step)`."""
    dropped_ids: NDArray[np.int64]
    """Refused, aborted while waiting, or preempted for good; they own nothing any more."""
    restarted_ids: NDArray[np.int64]
    """Preempted to be recomputed: forget per-sequence accumulators."""
    stats: StepStats


@dataclass(frozen=True, slots=True)
class StepCorrection:
    """Asynchronous decode: what changed for the rows of a launched step once the step before it was processed."""

    query_lengths: NDArray[np.int32]
    """[N]"""
    context_lengths: NDArray[np.int32]
    """[N]"""
    committed_lengths: NDArray[np.int32]
    """[N]"""
    anchor_token_ids: NDArray[np.int32]
    """[N] last committed token."""
    draft_token_ids: NDArray[np.int32]
    """[N, G]"""
    draft_read_slots: NDArray[np.int32]
    """[N]"""
    draft_write_slots: NDArray[np.int32]
    """[N]"""
    is_live: NDArray[np.bool_]
    """[N] false: the output of this row will be dropped."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the sampler produced for the rows of one plan."""

    step: int
    sampled_token_ids: NDArray[np.int32]
    """[N] last token of each row; ignored for chunks that do not end their prompt."""
    accepted_token_ids: NDArray[np.int32]
    """[N, G] accepted prefix, then -1; [N, 0] for prefill."""
    draft_token_ids: NDArray[np.int32]
    """[N, G] drafts for the next step; [N, 0] for prefill or without drafts."""
    confidences: NDArray[np.float32]
    """[N, G] of the next drafts; [N, 0] with G > 0 means unknown."""
    row_status: NDArray[np.int8] | None
    """[N] structured status after sampling, -1 ends that request; None = no constrained row, stored values stay."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What processing a result did to the sequences; stays between scheduler and engine."""

    token_offsets: NDArray[np.int32]
    """[N+1] row i appended token_ids[token_offsets[i]:token_offsets[i+1]]."""
    token_ids: NDArray[np.int32]
    """[K]"""
    num_output_tokens: NDArray[np.int32]
    """[N] output length afterwards."""
    finish_reasons: NDArray[np.int8]
    """[N] 0 = goes on, else a final `SequenceStatus`, reported once per request."""
    num_verified: NDArray[np.int32]
    """[N] verify length; 0 where no token was produced."""
    num_accepted: NDArray[np.int32]
    """[N] accepted length, the target's own token included; 0 where no token was produced."""
    verified_confidences: NDArray[np.float32]
    """[N, G] raw confidences of the drafts just verified; NaN where there were none."""
    closed_ids: NDArray[np.int64]
    """[c] requests that end without a token: refused, aborted, preempted for good."""
    closed_reasons: NDArray[np.int8]
    """[c] final `SequenceStatus` of each."""
    closed_num_output_tokens: NDArray[np.int32]
    """[c]"""
    completed_ids: NDArray[np.int64]
    """[h] prefill-only engines: prompts ready to be handed over."""
