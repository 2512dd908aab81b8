"""The ways of serving that the table names, each with the proof that it really happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from drafts_testing import budgets, drafters
from drafts_testing.bench import Setup
from drafts_testing.workloads import rising
from options_testing.runs import Run


@dataclass(frozen=True)
class Mode:
    """One way of serving."""

    change: Callable[[Setup], Setup]
    happened: Callable[[Run], bool]


def plain(setup: Setup) -> Setup:
    """No drafts, one step after the other, whole prompts, memory for all."""
    return replace(
        setup,
        draft_length=0,
        is_async=False,
        budget=None,
        step_times=(),
        is_timed=False,
        is_native=True,
        num_blocks=None,
        options={"max_num_seqs": 24, "max_model_len": 64},
    )


def _change(draft_length: int, *, options: dict[str, Any] | None = None, **changes: Any) -> Callable[[Setup], Setup]:
    def change(setup: Setup) -> Setup:
        asked = {"max_num_seqs": 24, "max_model_len": 64, "prefill_interval_all": 3} | (options or {})
        return replace(setup, draft_length=draft_length, confide=drafters.random, options=asked, **changes)

    return change


def drafts_held_and_failed(run: Run) -> bool:
    """Some steps kept more than one draft of a row, some refused one."""
    accepted, verified = run.rows("num_accepted"), run.rows("num_verified")
    return bool((accepted > 2).any() and (accepted < verified).any())


def steps_overlapped(run: Run) -> bool:
    """Decode steps were launched before the tokens of the step before were known."""
    return sum(bool((record.plan.previous_rows >= 0).any()) for record in run.decode_steps) > 2


def lengths_varied(run: Run) -> bool:
    """Rows verified several numbers of drafts, none among them, and kept some."""
    return len(set(run.rows("num_verified").tolist())) > 2 and bool((run.rows("num_accepted") > 1).any())


def prompts_were_split(run: Run) -> bool:
    """Some prompt took three steps or more."""
    chunks: dict[int, int] = {}
    for record in run.prefill_steps:
        for sequence_id in record.plan.sequence_ids.tolist():
            chunks[sequence_id] = chunks.get(sequence_id, 0) + 1
    return max(chunks.values()) > 2


def output_was_recomputed(run: Run) -> bool:
    """A preempted sequence came back as a prompt with the output it had."""
    plans = [record.plan for record in run.prefill_steps]
    recomputed = any((plan.committed_lengths > plan.prompt_lengths).any() for plan in plans)
    return recomputed and any(output.metrics.num_preemptions for output in run.finals)


CHUNKS = {"max_num_seqs": 6, "chunked_prefill": True, "max_num_batched_tokens": 12}
TIGHT = {"max_num_seqs": 6}
"""As many as there are requests, so that slots are soon used again."""

MODES: dict[str, dict[str, Mode]] = {
    "drafts": {
        "five": Mode(_change(5), drafts_held_and_failed),
        "two": Mode(_change(2), drafts_held_and_failed),
    },
    "async": {
        "with drafts": Mode(
            _change(3, is_async=True), lambda run: steps_overlapped(run) and drafts_held_and_failed(run)
        ),
        "alone": Mode(_change(0, is_async=True), steps_overlapped),
    },
    "variable length": {
        "shared out on the device": Mode(
            _change(5, is_async=True, step_times=rising(6, 5), options={"max_num_seqs": 6}),
            lambda run: lengths_varied(run) and steps_overlapped(run),
        ),
        "by plan": Mode(_change(5, budget=lambda: budgets.planned((3, 1, 6, 2))), lengths_varied),
    },
    "chunked": {
        "with drafts, overlapping": Mode(
            _change(1, is_async=True, options=CHUNKS), lambda run: prompts_were_split(run) and steps_overlapped(run)
        ),
        "alone": Mode(_change(0, options=CHUNKS), prompts_were_split),
    },
    "preempted": {
        "with drafts, overlapping": Mode(
            _change(3, is_async=True, num_blocks=16, options=TIGHT),
            lambda run: output_was_recomputed(run) and steps_overlapped(run),
        ),
        "alone": Mode(_change(0, num_blocks=16, options=TIGHT), output_was_recomputed),
    },
}
"""By column of the table: the ways in which its cells are tested. The first one is the hardest; the soak runs take the
others, too."""
