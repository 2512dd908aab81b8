"""Replays a recorded trace through the interface alone: calls, arrays and `debug_state`."""

from __future__ import annotations

from typing import Any

import numpy as np
from scheduler_testing.cores import Core
from scheduler_testing.sampler import EOS, Script, sample

from thalweg.interfaces import StepKind, StepOutcome, StepPlan
from thalweg.scheduler.config import SchedulerConfig
from thalweg.scheduler.vote import run_local_vote

FINISH_REASONS = {
    0: "",
    3: "stop",
    4: "length",
    5: "abort",
    6: "prompt_length_exceeded",
    7: "insufficient_system_resource",
}
VOCAB_SIZE = 1000
TAIL_LENGTH = 3


class Replay:
    """One scheduler fed with the requests of one trace."""

    def __init__(self, core: Core, trace: dict[str, Any], policy: str) -> None:
        recorded = trace["config"]
        assert not recorded["zos"]
        assert recorded["engine_type"] == 0
        self.draft_length = recorded["nextn"]
        config = SchedulerConfig(
            max_num_seqs=recorded["max_num_seqs"],
            max_num_batched_tokens=recorded["max_num_batched_tokens"],
            max_model_len=recorded["max_model_len"],
            chunked_prefill=recorded["chunked_prefill"],
            stop_preempted_request=recorded["stop_preempted"],
            prefill_interval_all=recorded["all"],
            prefill_interval_any=recorded["any"],
            prefill_max_sum_seqlen_k=recorded.get("max_sum_k", 1 << 30),
            policy=policy,  # type: ignore[arg-type]
        )
        self.scheduler = core.Scheduler(
            config,
            num_blocks=recorded["num_blocks"],
            num_state_slots=recorded["num_states"],
            block_size=recorded["block_size"],
            draft_length=self.draft_length,
            tail_length=TAIL_LENGTH,
            vocab_size=VOCAB_SIZE,
            context_parallel_size=recorded.get("cp", 1),
        )
        self.requests = sorted(trace["requests"], key=lambda request: (request["arrive"], request["order"]))
        self.names: dict[int, str] = {}
        self.ids: dict[str, int] = {}
        self.scripts: dict[int, Script] = {}
        self.tokens: dict[int, list[int]] = {}
        self.prompt_lengths: dict[int, int] = {}
        self.num_records: dict[str, int] = {}

    def step(self, index: int) -> dict[str, Any]:
        """Run one step and return it in the words of the trace."""
        for request in self.requests:
            if request["arrive"] == index:
                self.arrive(request)
        for request in self.requests:
            if request.get("abort_at") == index:
                self.scheduler.abort([self.ids[request["id"]]])
        plan = run_local_vote(self.scheduler)
        planned = self.scheduler.debug_state()
        entry = {
            "step": plan.step,
            "prompt_run": plan.kind == StepKind.PREFILL,
            "num_batched_tokens": plan.num_batched_tokens,
            "decode_step_after": planned["decode_step"],
            "scheduled": [self.row(plan, planned, row) for row in range(len(plan.sequence_ids))],
            "finished_to_free": self.named(plan.finished_ids),
            "sum_seqlen_qxk": plan.stats.sum_query_times_context,
            "max_seqlen_k": plan.stats.max_context_length,
            "min_seqlen_k": plan.stats.min_context_length,
            "waiting_after_schedule": self.named(planned["waiting"]),
            "preempted_total": plan.stats.num_preempted,
            "aborted_total": plan.stats.num_aborted,
        }
        self.check_inputs(plan)
        self.scheduler.release(plan.step)
        outcome = self.scheduler.process(sample(plan, self.scripts, self.draft_length))
        entry["emitted"] = self.emitted(plan, outcome)
        after = self.scheduler.debug_state()
        entry["free_blocks_end"] = self.scheduler.blocks.num_free
        entry["free_states_end"] = self.scheduler.state_slots.num_free
        entry["running_end"] = self.named(after["running"])
        entry["waiting_end"] = self.named(after["waiting"])
        return entry

    def arrive(self, request: dict[str, Any]) -> None:
        prompt = [2 + index % 50 for index in range(request["prompt"])]
        sequence_id = self.scheduler.add(
            np.array(prompt, np.int32),
            max_tokens=request["max_tokens"],
            eos_token_id=EOS,
            ignore_eos=request.get("ignore_eos", False),
            checkpoints=request.get("checkpoints") or (),
            is_structured=bool(request.get("so_status")),
        )
        self.names[sequence_id] = request["id"]
        self.ids[request["id"]] = sequence_id
        self.num_records[request["id"]] = 0
        self.scripts[sequence_id] = Script(eos_at=request.get("eos_at"), accept=request["accept"])
        self.tokens[sequence_id] = prompt
        self.prompt_lengths[sequence_id] = len(prompt)

    def row(self, plan: StepPlan, planned: dict[str, Any], row: int) -> dict[str, Any]:
        sequence_id = int(plan.sequence_ids[row])
        counters = planned["sequences"][sequence_id]
        is_last = plan.kind == StepKind.PREFILL and plan.context_lengths[row] >= plan.committed_lengths[row]
        return {
            "id": self.names[sequence_id],
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

    def check_inputs(self, plan: StepPlan) -> None:
        """The token arrays, which the trace does not record, follow from the tokens produced so far."""
        is_prefill = plan.kind == StepKind.PREFILL
        chunks: list[int] = []
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            tokens = self.tokens[sequence_id]
            context, query = int(plan.context_lengths[row]), int(plan.query_lengths[row])
            assert plan.committed_lengths[row] == len(tokens)
            assert plan.prompt_lengths[row] == self.prompt_lengths[sequence_id]
            end = context - query + 1 if is_prefill else len(tokens)
            tail = [-1] * TAIL_LENGTH + tokens[:end]
            assert plan.tail_token_ids[row].tolist() == tail[-TAIL_LENGTH:]
            if is_prefill:
                chunks += tokens[context - query : context]
                assert plan.next_token_ids[row] == (tokens[context] if context < len(tokens) else -1)
        assert plan.token_ids.tolist() == chunks
        assert plan.draft_token_ids.shape == (len(plan.sequence_ids), 0 if is_prefill else self.draft_length)

    def emitted(self, plan: StepPlan, outcome: StepOutcome) -> list[list[Any]]:
        records = []
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            tokens = outcome.token_ids[outcome.token_offsets[row] : outcome.token_offsets[row + 1]].tolist()
            self.tokens[sequence_id] += tokens
            reason = int(outcome.finish_reasons[row])
            before = int(outcome.num_output_tokens[row]) - len(tokens)
            for index, token in enumerate(tokens):
                records.append([self.names[sequence_id], token, "", False, before + index + 1, 0, 0])
            if tokens:
                records[-1][2:4] = [FINISH_REASONS[reason], reason != 0]
                records[-1][5:] = [int(outcome.num_verified[row]), int(outcome.num_accepted[row])]
        for sequence_id, reason, num_output in zip(
            outcome.closed_ids.tolist(), outcome.closed_reasons, outcome.closed_num_output_tokens, strict=True
        ):
            # The traced system reports a request that ends without a token as its last token once more.
            last = self.tokens[sequence_id][-1]
            name = self.names[sequence_id]
            records.append([name, last, FINISH_REASONS[int(reason)], True, int(num_output) + 1, 0, 0])
        for name, *_ in records:
            self.num_records[name] += 1
        return records

    def final(self, num_listed: int) -> dict[str, Any]:
        """Totals at the end; the trace lists only the head of the free list."""
        state = self.scheduler.debug_state()
        return {
            "free_blocks": len(state["free_blocks"]),
            "free_states": len(state["free_state_slots"]),
            "free_block_order_head": state["free_blocks"][:num_listed],
            "preempted": state["num_preempted"],
            "aborted": state["num_aborted"],
        }

    def named(self, sequence_ids: Any) -> list[str]:
        return [self.names[int(sequence_id)] for sequence_id in sequence_ids]
