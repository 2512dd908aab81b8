"""What a plan and its correction must look like, told from everything but the scheduler's own arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
from scheduler_testing.device import Launched
from scheduler_testing.ledger import Ledger
from scheduler_testing.workload import Curve, Workload

from thalweg.interfaces import StepCorrection, StepKind, StepPlan


def check_plan(
    plan: StepPlan, state: dict[str, Any], ledger: Ledger, in_flight: Launched | None, curve: Curve | None
) -> None:
    """state: right after planning. in_flight: the decode step whose result is due. curve: of varying verify lengths."""
    workload, ids = ledger.workload, plan.sequence_ids.tolist()
    assert plan.num_batched_tokens <= workload.token_budget
    assert plan.query_lengths.sum() <= plan.num_batched_tokens
    assert len(set(ids)) == len(ids)
    assert (plan.query_lengths > 0).all()
    assert plan.committed_lengths.tolist() == [len(ledger.entries[each].tokens) for each in ids]
    assert plan.prompt_lengths.tolist() == [ledger.entries[each].prompt_length for each in ids]
    assert plan.state_slots.tolist() == [state["sequences"][each]["state_slot"] for each in ids]
    assert plan.block_ids.tolist() == [block for each in ids for block in state["sequences"][each]["blocks"]]
    for sequence_id in plan.restarted_ids.tolist():
        restarted = state["sequences"][sequence_id]
        assert (restarted["blocks"], restarted["state_slot"], restarted["num_computed"]) == ([], -1, 0)
    rows_before = [] if in_flight is None else in_flight.plan.sequence_ids.tolist()
    previous = [rows_before.index(each) if each in rows_before else -1 for each in ids]
    if plan.kind == StepKind.DECODE:
        assert not workload.is_prompt_engine
        assert plan.previous_rows.tolist() == previous
        _check_decode(plan, workload, curve)
    else:
        assert workload.config.engine_type != "completion"
        assert (plan.previous_rows == -1).all()
        _check_prefill(plan, state, ledger)
    _check_stats(plan, state)


def _check_decode(plan: StepPlan, workload: Workload, curve: Curve | None) -> None:
    draft_length = workload.sizes["draft_length"]
    assert len(plan.sequence_ids) <= workload.config.max_num_seqs
    assert plan.num_batched_tokens == plan.query_lengths.sum()
    if curve is not None:
        assert (plan.query_lengths <= 1 + draft_length).all()
        assert plan.num_batched_tokens <= curve[-1][0]
    else:
        assert (plan.query_lengths == 1 + draft_length).all()
    # The step in flight is expected to keep all its drafts.
    optimism = np.where(plan.previous_rows >= 0, draft_length + 1, 0)
    reserved = plan.context_lengths - plan.query_lengths + draft_length + 1
    assert np.array_equal(np.diff(plan.block_offsets), -(-reserved // workload.sizes["block_size"]))
    assert (plan.context_lengths == plan.committed_lengths - 1 + optimism + plan.query_lengths).all()


def _check_prefill(plan: StepPlan, state: dict[str, Any], ledger: Ledger) -> None:
    workload = ledger.workload
    config = workload.config
    assert plan.committed_lengths.sum() <= config.prefill_max_sum_seqlen_k
    starts = plan.context_lengths - plan.query_lengths
    assert starts.tolist() == [state["sequences"][each]["num_computed"] for each in plan.sequence_ids.tolist()]
    is_chunk = plan.context_lengths < plan.committed_lengths
    assert config.chunked_prefill or not is_chunk.any()
    assert (plan.draft_read_slots == 0).all(), "no drafter runs in a prefill"
    assert np.array_equal(np.diff(plan.block_offsets), -(-plan.committed_lengths // workload.sizes["block_size"]))
    if not workload.is_prompt_engine:
        assert not is_chunk[:-1].any(), "only the last row may be cut"
    if not workload.is_default:
        return
    shortest = max(config.lookahead_tokens, 1)
    assert (plan.query_lengths[is_chunk] >= shortest).all()
    for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
        start, end = int(starts[row]), int(plan.context_lengths[row])
        checkpoints = ledger.checkpoints[sequence_id]
        passed = [position for position in checkpoints if start + shortest <= position < end]
        assert not passed or not config.chunked_prefill, f"row {row}: {start} to {end} across checkpoints {passed}"
        # Used up: a sequence that is recomputed does not stop there again.
        ledger.checkpoints[sequence_id] = [position for position in checkpoints if position > end]


def _check_stats(plan: StepPlan, state: dict[str, Any]) -> None:
    stats, contexts = plan.stats, plan.context_lengths
    queries = plan.query_lengths.astype(np.int64)
    assert stats.sum_query_times_context == (queries * contexts).sum()
    assert stats.max_context_length == max(contexts, default=0)
    assert stats.min_context_length == min(contexts, default=0)
    assert stats.num_running == len(state["running"])
    assert stats.num_waiting == len(state["waiting"])
    assert stats.num_prompted == len(state["prompted"])
    assert stats.num_free_blocks == len(state["free_blocks"])
    assert stats.num_free_state_slots == len(state["free_state_slots"])
    assert stats.num_finished == len(plan.finished_ids)
    prompts = {
        queue: sum(state["sequences"][each]["prompt_len"] for each in state[queue]) for queue in ("running", "waiting")
    }
    assert stats.prompt_tokens_running == prompts["running"]
    assert stats.prompt_tokens_waiting + stats.prompt_tokens_chunked >= prompts["waiting"]


def wants_prefill(state: dict[str, Any], workload: Workload) -> bool:
    """Whether a rank in this state has a prompt it may work on."""
    if workload.config.engine_type == "completion":
        return False
    waiting = [state["sequences"][each] for each in state["waiting"] if state["sequences"][each]["status"] < 3]
    if any(sequence["blocks"] and sequence["is_schedulable"] for sequence in waiting):
        return True
    first = next((sequence for sequence in waiting if not sequence["blocks"]), None)
    num_blocks = workload.sizes["num_blocks"]
    has_room = num_blocks - len(state["free_blocks"]) <= 0.9 * num_blocks
    return first is not None and first["is_schedulable"] and (has_room or workload.is_prompt_engine)


def check_preemption(plan: StepPlan, before: dict[str, Any], workload: Workload) -> None:
    """Nobody is preempted when everybody could have had the blocks of its next step. before: the state at planning."""
    if plan.kind == StepKind.PREFILL:
        assert not len(plan.restarted_ids), "a prefill preempts nobody"
    if not workload.is_default:
        return
    sizes, sequences = workload.sizes, before["sequences"]
    num_missing = 0
    for sequence_id in [*before["running"], *before["prompted"]]:
        sequence = sequences[sequence_id]
        reserved = sequence["len"] + sequence["total_inflight"] + sizes["draft_length"]
        num_missing += max(0, -(-reserved // sizes["block_size"]) - len(sequence["blocks"]))
    if num_missing <= len(before["free_blocks"]):
        assert not len(plan.restarted_ids), "preempted without need"


def check_correction(launched: Launched, correction: StepCorrection, ledger: Ledger) -> None:
    """Host and device agree about every row that still counts."""
    plan = launched.plan
    assert np.array_equal(correction.query_lengths, launched.query_lengths)
    # A slot that was given back meanwhile is still written by this step, before any new owner writes to it.
    assert np.array_equal(correction.draft_write_slots, plan.draft_write_slots)
    for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
        entry = ledger.entries[sequence_id]
        is_live = entry.final is None and not entry.is_aborted
        assert bool(correction.is_live[row]) == is_live, f"row {row}"
        if not is_live:
            continue
        length, context = int(correction.committed_lengths[row]), int(correction.context_lengths[row])
        assert length == len(entry.tokens)
        assert context == launched.starts[row] + launched.query_lengths[row], f"row {row}: host and device disagree"
        assert context == length - 1 + launched.query_lengths[row]
        assert correction.anchor_token_ids[row] == launched.queries[row][0] == entry.tokens[-1]
        verified = launched.queries[row][1:]
        assert correction.draft_token_ids[row, : len(verified)].tolist() == verified
