"""What must hold for the memory and the counters of a scheduler after every call, whatever happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from scheduler_testing.workload import Workload

from thalweg.interfaces import StepKind, StepPlan


def check_memory(
    state: dict[str, Any], workload: Workload, pinned_blocks: Iterable[int], pinned_slots: Iterable[int]
) -> None:
    """No block or slot is lost, handed out twice, or written by two sequences. Pinned ones may have no owner."""
    sizes, sequences = workload.sizes, state["sequences"].values()
    _check_blocks(state, sizes, set(pinned_blocks))
    slots = [sequence["state_slot"] for sequence in sequences if sequence["state_slot"] > 0]
    _assert_disjoint(slots, state["free_state_slots"])
    lost = set(range(1, sizes["num_state_slots"])) - {*slots, *state["free_state_slots"]}
    assert lost <= set(pinned_slots), f"state slots {lost} are lost"
    drafts = [sequence["draft_slot"] for sequence in sequences if sequence["draft_slot"]]
    _assert_disjoint(drafts, state["free_draft_slots"])
    assert len(drafts) + len(state["free_draft_slots"]) == workload.config.max_num_seqs


def _check_blocks(state: dict[str, Any], sizes: dict[str, Any], pinned: set[int]) -> None:
    free = state["free_blocks"]
    assert len(set(free)) == len(free), "a block is free twice"
    owners: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    for sequence in state["sequences"].values():
        assert len(set(sequence["blocks"])) == len(sequence["blocks"])
        for index, block in enumerate(sequence["blocks"]):
            owners.setdefault(block, []).append((index, sequence))
    both = owners.keys() & set(free)
    assert not both, f"blocks {both} are free and owned"
    lost = set(range(1, sizes["num_blocks"])) - owners.keys() - set(free)
    assert lost <= pinned, f"blocks {lost} are lost"
    for block, sharers in owners.items():
        if len(sharers) > 1:
            assert len({index for index, _ in sharers}) == 1, f"block {block} stands at two positions"
            end = (sharers[0][0] + 1) * sizes["block_size"]
            computed = [sequence["num_computed"] for _, sequence in sharers]
            assert min(computed) >= end, f"block {block} has two writers"


def check_copy_sources(state: dict[str, Any], listed: Iterable[StepPlan]) -> None:
    """What plans copy from is nobody else's until the step after each of them is released."""
    for plan in listed:
        assert not set(plan.state_copies[:, 0].tolist()) & set(state["free_state_slots"])
        assert not set(plan.block_copies[:, 0].tolist()) & set(state["free_blocks"])


def check_queues(state: dict[str, Any], workload: Workload, rows: set[int]) -> None:
    """Everybody stands in one place at most. rows: sequences of prefill steps whose result is due."""
    queues = [*state["waiting"], *state["running"], *state["prompted"]]
    assert len(set(queues)) == len(queues), "a sequence stands in two queues"
    assert not rows & set(queues), "a row of a prefill stands in a queue"
    if not workload.is_prompt_engine:
        assert len(state["running"]) <= workload.config.max_num_seqs
    for sequence_id, sequence in state["sequences"].items():
        is_somewhere = sequence_id in rows or sequence_id in queues
        assert is_somewhere or sequence["status"] >= 3, f"sequence {sequence_id} is lost"


def check_order(state: dict[str, Any], plan: StepPlan) -> None:
    """Rows of a processed prefill that wait again stand in front, in their order."""
    rows = plan.sequence_ids.tolist() if plan.kind == StepKind.PREFILL else []
    again = [sequence_id for sequence_id in rows if sequence_id in state["waiting"]]
    assert state["waiting"][: len(again)] == again


def check_counters(state: dict[str, Any], workload: Workload, unprocessed: list[set[int]]) -> None:
    """unprocessed: for each step whose result is due, the sequences in it that were not restarted since."""
    per_step = workload.sizes["draft_length"] + 1
    due = Counter(sequence_id for rows in unprocessed for sequence_id in rows)
    for sequence_id, sequence in state["sequences"].items():
        if sequence["status"] >= 3:
            continue  # Nothing is planned with it any more.
        count = due[sequence_id]
        assert sequence["schedule_count"] - sequence["process_count"] == count, f"sequence {sequence_id}"
        assert sequence["total_inflight"] == count * per_step, f"sequence {sequence_id}"
        assert sequence["last_inflight"] == (per_step if count else 0), f"sequence {sequence_id}"
        assert sequence["num_computed"] <= sequence["len"]


def check_draft_slots(state: dict[str, Any], workload: Workload) -> None:
    """Right after a decode plan: exactly the running sequences have one."""
    in_use = workload.config.max_num_seqs - len(state["free_draft_slots"])
    assert in_use == (len(state["running"]) if workload.sizes["draft_length"] else 0)


def check_drained(state: dict[str, Any], workload: Workload) -> None:
    assert state["sequences"] == {}
    assert len(state["free_blocks"]) == workload.sizes["num_blocks"] - 1
    assert len(state["free_state_slots"]) == workload.sizes["num_state_slots"] - 1
    assert len(state["free_draft_slots"]) == workload.config.max_num_seqs


def _assert_disjoint(first: list[int], second: list[int]) -> None:
    both = first + second
    assert len(set(both)) == len(both), f"handed out twice: {sorted(Counter(both) - Counter(set(both)))}"
