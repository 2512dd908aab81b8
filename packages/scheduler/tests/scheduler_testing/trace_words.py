"""Says what a plan and an outcome hold in the words of the recorded traces, and checks what the traces leave out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.interfaces import StepKind, StepOutcome, StepPlan

FINISH_REASONS = {
    0: "",
    3: "stop",
    4: "length",
    5: "abort",
    6: "prompt_length_exceeded",
    7: "insufficient_system_resource",
}


@dataclass
class Subject:
    """A request as the trace knows it."""

    name: str
    prompt_length: int
    tokens: list[int]
    """Prompt and everything produced so far."""
    num_records: int = 0


class TraceWords:
    """The requests of one rank, by sequence id."""

    def __init__(self, tail_length: int, draft_length: int) -> None:
        self._tail_length = tail_length
        self._draft_length = draft_length
        self.subjects: dict[int, Subject] = {}

    def names(self, sequence_ids: Any) -> list[str]:
        return [self.subjects[int(sequence_id)].name for sequence_id in sequence_ids]

    def planned(self, plan: StepPlan, state: dict[str, Any]) -> dict[str, Any]:
        """A trace's entry as far as the plan goes; state: `debug_state` right after planning."""
        self._check_inputs(plan)
        return {
            "step": plan.step,
            "prompt_run": plan.kind == StepKind.PREFILL,
            "num_batched_tokens": plan.num_batched_tokens,
            "decode_step_after": state["decode_step"],
            "scheduled": [self._row(plan, state, row) for row in range(len(plan.sequence_ids))],
            "finished_to_free": self.names(plan.finished_ids),
            "sum_seqlen_qxk": plan.stats.sum_query_times_context,
            "max_seqlen_k": plan.stats.max_context_length,
            "min_seqlen_k": plan.stats.min_context_length,
            "waiting_after_schedule": self.names(state["waiting"]),
            "preempted_total": plan.stats.num_preempted,
            "aborted_total": plan.stats.num_aborted,
        }

    def _row(self, plan: StepPlan, state: dict[str, Any], row: int) -> dict[str, Any]:
        sequence_id = int(plan.sequence_ids[row])
        counters = state["sequences"][sequence_id]
        is_last = plan.kind == StepKind.PREFILL and plan.context_lengths[row] >= plan.committed_lengths[row]
        return {
            "id": self.subjects[sequence_id].name,
            "seqlen_q": int(plan.query_lengths[row]),
            "seqlen_k": int(plan.context_lengths[row]),
            "last_chunk": bool(is_last),
            "blocks": plan.block_ids[plan.block_offsets[row] : plan.block_offsets[row + 1]].tolist(),
            "state": int(plan.state_slots[row]),
            "read_slot": int(plan.draft_read_slots[row]),
            "write_slot": int(plan.draft_write_slots[row]),
            "schedule_cnt": counters["schedule_count"],
            "process_cnt": counters["process_count"],
        }

    def _check_inputs(self, plan: StepPlan) -> None:
        """The token arrays, which the trace does not record, follow from the tokens produced so far."""
        is_prefill = plan.kind == StepKind.PREFILL
        chunks: list[int] = []
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            subject = self.subjects[sequence_id]
            tokens = subject.tokens
            context, query = int(plan.context_lengths[row]), int(plan.query_lengths[row])
            assert plan.committed_lengths[row] == len(tokens)
            assert plan.prompt_lengths[row] == subject.prompt_length
            end = context - query + 1 if is_prefill else len(tokens)
            tail = [-1] * self._tail_length + tokens[:end]
            assert plan.tail_token_ids[row].tolist() == tail[-self._tail_length :]
            if is_prefill:
                chunks += tokens[context - query : context]
                assert plan.next_token_ids[row] == (tokens[context] if context < len(tokens) else -1)
        assert plan.token_ids.tolist() == chunks
        assert plan.draft_token_ids.shape == (len(plan.sequence_ids), 0 if is_prefill else self._draft_length)

    def emitted(self, plan: StepPlan, outcome: StepOutcome) -> list[list[Any]]:
        """The records of a processed step; its tokens are remembered."""
        records = []
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            subject = self.subjects[sequence_id]
            tokens = outcome.token_ids[outcome.token_offsets[row] : outcome.token_offsets[row + 1]].tolist()
            subject.tokens += tokens
            subject.num_records += len(tokens)
            reason = int(outcome.finish_reasons[row])
            before = int(outcome.num_output_tokens[row]) - len(tokens)
            for index, token in enumerate(tokens):
                records.append([subject.name, token, "", False, before + index + 1, 0, 0])
            if tokens:
                records[-1][2:4] = [FINISH_REASONS[reason], reason != 0]
                records[-1][5:] = [int(outcome.num_verified[row]), int(outcome.num_accepted[row])]
        for sequence_id, reason, num_output in zip(
            outcome.closed_ids.tolist(), outcome.closed_reasons, outcome.closed_num_output_tokens, strict=True
        ):
            # The traced system reports a request that ends without a token as its last token once more.
            subject = self.subjects[sequence_id]
            subject.num_records += 1
            reason_name = FINISH_REASONS[int(reason)]
            records.append([subject.name, subject.tokens[-1], reason_name, True, int(num_output) + 1, 0, 0])
        return records
