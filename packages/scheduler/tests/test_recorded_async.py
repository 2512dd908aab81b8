"""Recordings of asynchronous stepping: where a row was in the step before, and how lengths come true."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scheduler_testing.async_driver import AsyncDriver, async_config
from scheduler_testing.cores import Core, load_core

GOLDEN = Path(__file__).parent / "golden"
TRACES: list[dict[str, Any]] = json.loads((GOLDEN / "zos_trace.json").read_text())
REMAPS: list[dict[str, Any]] = json.loads((GOLDEN / "zos_remap.json").read_text())


def new_driver(core: Core, trace: dict[str, Any], **sizes: Any) -> AsyncDriver:
    """The one request of a trace, prefilled; its round k accepts as many drafts as the trace says."""
    config = async_config(max_model_len=2000)
    driver = AsyncDriver(core, config, num_blocks=200, draft_length=trace["nextn"], **sizes)
    driver.add(trace["prompt_len"], max_tokens=500, accept=tuple(row["accepted"] for row in trace["rows"]))
    return driver


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: f"nextn {trace['nextn']}")
def test_lengths_without_the_query_repeat_the_recording(core: Core, trace: dict[str, Any]) -> None:
    """All drafts are verified here; the recording verifies fewer, but what a step finds and leaves is the same."""
    driver = new_driver(core, trace)
    while not driver.running:
        driver.advance()
    for row in trace["rows"]:
        state = driver.state(0)
        assert state["total_inflight"] == row["inflight_before"]
        plan, correction, _ = driver.advance()
        assert correction is not None
        query = trace["nextn"] + 1
        assert plan.context_lengths.tolist() == [row["sched_seqlen_k"] - row["sched_seqlen_q"] + query]
        assert correction.context_lengths.tolist() == [row["seqlen_k"] - row["seqlen_q"] + query]
        assert correction.committed_lengths.tolist() == [row["seq_len_after_prev_post"]]
        assert (plan.previous_rows.tolist() == [0]) == row["remapped"]
        assert driver.state(0)["num_computed"] == row["num_tokens_after_prev_post"]


@dataclass
class ScriptedBudget:
    """Verify lengths as somebody wrote them down."""

    lengths: list[int]

    def set_step_time_curve(self, points: object) -> None: ...

    def verify_lengths(self, budget_survival: list[Any], split_survival: list[Any]) -> Any:
        assert len(budget_survival) == len(split_survival) == len(self.lengths)
        return np.array(self.lengths, np.int32)


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: f"nextn {trace['nextn']}")
def test_redistributed_lengths_repeat_the_recording(trace: dict[str, Any]) -> None:
    """A second request takes what the first one gains or loses. Only the plain-Python core takes a foreign budget."""
    budget = ScriptedBudget([])
    driver = new_driver(load_core("reference"), trace, verify_budget=budget)
    driver.add(1, max_tokens=500)
    while len(driver.running) < 2:
        driver.advance()
    driver.scheduler.set_step_time_curve([(48, 1.0)])
    for row in trace["rows"]:
        gained = row["seqlen_q"] - row["sched_seqlen_q"]
        budget.lengths = [row["sched_seqlen_q"], 1 + max(0, gained)]
        plan = driver.plan()
        assert driver.flush() or not row["remapped"]
        assert plan.query_lengths.tolist() == budget.lengths
        assert plan.context_lengths[0] == row["sched_seqlen_k"]
        lengths = np.array([row["seqlen_q"], budget.lengths[1] - gained], np.int32)
        correction = driver.scheduler.correct(plan.step, lengths)
        assert correction.query_lengths.tolist() == lengths.tolist()
        assert correction.context_lengths[0] == row["seqlen_k"] == row["sampling_seqlen_k"]
        assert correction.committed_lengths[0] == row["sampling_position"]
        driver.launch(plan, correction)


@dataclass(frozen=True)
class Story:
    """Lengths that make sequences stand in the recorded order, in the step in flight and in the next one."""

    draft_length: int
    before: dict[int, int]
    """By recorded id: length in the step in flight."""
    accept: dict[int, int]
    """Drafts that the step before that one accepts."""
    leaves: tuple[int, ...] = ()
    """End with that step."""
    fresh: dict[int, int] | None = None
    """Length of who joins the next step."""


STORIES = (
    Story(5, before={1: 40, 2: 30}, accept={1: 3, 2: 1}),
    Story(5, before={1: 95, 2: 94, 3: 90}, accept={1: 0, 2: 5, 3: 0}, leaves=(3,), fresh={9: 98}),
    Story(5, before={1: 40}, accept={1: 0}, leaves=(1,), fresh={4: 20}),
    Story(0, before={4: 8}, accept={4: 0}),
    Story(5, before={}, accept={}, fresh={0: 12}),
)


@pytest.mark.parametrize(("recorded", "story"), [*zip(REMAPS, STORIES, strict=True)])
def test_rows_find_themselves_in_the_step_in_flight_as_recorded(
    core: Core, recorded: dict[str, Any], story: Story
) -> None:
    """Whoever joins comes from another engine: a prefill in between would take the step in flight away."""
    config = async_config(engine_type="completion", stop_preempted_request=True)
    driver = AsyncDriver(core, config, draft_length=story.draft_length)
    ids = {
        name: driver.load_ready(length, accept=(story.accept[name],), max_tokens=2 if name in story.leaves else 200)
        for name, length in story.before.items()
    }
    driver.advance()
    in_flight = driver.plan()
    # The recording's placeholder stands for a step without rows.
    expected = [row["sid"] for row in recorded["input"]["prev"] if not row.get("ph")]
    assert in_flight.sequence_ids.tolist() == [ids[name] for name in expected]
    driver.advance(in_flight)
    for name, length in (story.fresh or {}).items():
        ids[name] = driver.load_ready(length)
    plan = driver.plan()
    names = [row["sid"] for row in recorded["input"]["cur"]]
    assert plan.sequence_ids.tolist() == [ids[name] for name in names]
    remap = recorded["output"]["remap"]
    assert plan.previous_rows.tolist() == (remap["data"][: len(names)] if remap else [-1] * len(names))
