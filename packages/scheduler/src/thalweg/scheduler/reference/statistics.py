"""Numbers of a plan, for logging. Their cost does not depend on how many sequences wait."""

from __future__ import annotations

from thalweg.interfaces import StepStats
from thalweg.scheduler.reference.state import State
from thalweg.scheduler.reference.step import PlannedStep


def step_stats(planned: PlannedStep, state: State) -> StepStats:
    """Numbers of the step and of the queues it leaves behind; the rows of a prefill stand in no queue."""
    contexts = [row.context_length for row in planned.rows]
    chunked = state.waiting.holders()
    attention_flops, total_flops = _flops(planned, state)
    return StepStats(
        sum_query_times_context=sum(row.query_length * row.context_length for row in planned.rows),
        max_context_length=max(contexts, default=0),
        min_context_length=min(contexts, default=0),
        attention_flops=float(attention_flops),
        total_flops=float(total_flops),
        num_running=len(state.running),
        num_waiting=len(state.waiting),
        num_chunked=len(chunked),
        num_preempted=state.num_preempted,
        num_aborted=state.num_aborted,
        num_free_blocks=state.memory.blocks.num_free,
        num_free_state_slots=state.memory.state_slots.num_free,
        num_prompted=len(state.prompted),
        prompt_tokens_running=sum(sequence.prompt_length for sequence in state.running),
        prompt_tokens_waiting=state.waiting.prompt_tokens,
        prompt_tokens_chunked=sum(sequence.prompt_length for sequence in chunked),
        num_finished=len(planned.finished),
        finished_output_tokens=sum(sequence.num_output for sequence in planned.finished),
        finished_prompt_tokens=sum(sequence.prompt_length for sequence in planned.finished),
        finished_output_context=sum(
            sequence.num_output * (sequence.num_output // 2 + sequence.prompt_length) for sequence in planned.finished
        ),
    )


def _flops(planned: PlannedStep, state: State) -> tuple[int, int]:
    """Attention and total over all rows; 0 when nobody told the sizes of the model."""
    attention = total = 0
    if state.flops is not None:
        for row in planned.rows:
            full_length = row.committed_length if planned.is_prefill else -1
            flops = state.flops.estimate(row.query_length, row.context_length, planned.is_prefill, full_length)
            attention += flops.attention
            total += flops.total
    return attention, total
