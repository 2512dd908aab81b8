"""Schedulers of several processes that agree over gloo: equal kinds of step, late and long prompts in time."""

import itertools
from typing import Any

import pytest
from rank_testing.launch import Launcher
from rank_testing.planning import plan_alone, plan_story
from rank_testing.stories import Story, late_prompt, long_prompt, uneven

from thalweg.scheduler.config import SchedulerConfig

pytestmark = pytest.mark.distributed

INTERVALS = {"prefill_interval_all": 7, "prefill_interval_any": 12, "prefill_interval_continue": 3}


def run_story(launcher: Launcher, story: Story, **options: Any) -> list[dict[str, Any]]:
    """The logs of all ranks, after checking what must hold in every group."""
    launcher.start(plan_story, len(story), story=story, **options)
    logs = launcher.results()
    kinds = [[step["kind"] for step in log["steps"]] for log in logs]
    assert all(kind == kinds[0] for kind in kinds[1:]), "every rank runs the same kind of step"
    collectives = [log["collectives"] for log in logs]
    assert all(collective == collectives[0] for collective in collectives[1:]), "nobody reduces what others do not"
    for step in collectives[0]:
        assert step[0] == ["max", 3]
        assert step[1:] in ([], [["min", 1]], [["min", 1]] * 2)
    assert len(collectives[0]) == len(kinds[0]) + 1  # the last one found out that nothing is left
    options.pop("core", None)
    for rank, log in enumerate(logs):
        assert log["leaked"] == 0
        assert log["tokens"] == plan_alone(story[rank], rank, **options)["tokens"]
        for index, arrival in enumerate(story[rank]):
            assert len(log["tokens"][arrival.name(rank, index)]) == arrival.max_tokens
    return logs


def steps_of(log: dict[str, Any], name: str, kind: str) -> list[int]:
    """Numbers of the steps of this kind in which the request had a row."""
    return [number for number, step in enumerate(log["steps"]) if step["kind"] == kind and name in step["requests"]]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("is_async", [False, True])
def test_uneven_load_runs_in_step(launcher: Launcher, size: int, is_async: bool) -> None:
    logs = run_story(launcher, uneven(size), async_scheduling=is_async, **INTERVALS)
    assert not any(step["requests"] for step in logs[-1]["steps"])  # the idle rank steps along
    assert {step["kind"] for step in logs[-1]["steps"]} == {"PREFILL", "DECODE"}


def test_the_plain_scheduler_runs_in_step_too(launcher: Launcher) -> None:
    run_story(launcher, uneven(2), core="thalweg.scheduler.reference", async_scheduling=True, **INTERVALS)


@pytest.mark.parametrize("arrival", [3, 12, 13, 30])
def test_one_late_prompt_of_a_rank_starts_by_the_next_any_vote(launcher: Launcher, arrival: int) -> None:
    story = late_prompt(2, arrival)
    logs = run_story(launcher, story, async_scheduling=True, **INTERVALS)
    started = steps_of(logs[1], story[1][0].name(1, 0), "PREFILL")[0]
    decodes = [step["kind"] for step in logs[1]["steps"][arrival:started]].count("DECODE")
    assert decodes == started - arrival  # nothing but decode steps before it
    assert decodes <= INTERVALS["prefill_interval_any"]


def test_with_the_default_intervals_a_late_prompt_waits_a_hundred_steps_at_most(launcher: Launcher) -> None:
    story = late_prompt(2, 4)
    logs = run_story(launcher, story, async_scheduling=True)
    started = steps_of(logs[1], story[1][0].name(1, 0), "PREFILL")[0]
    first_prefill = steps_of(logs[0], story[0][0].name(0, 0), "PREFILL")[0]
    assert started == first_prefill + 1 + SchedulerConfig().prefill_interval_any


def test_a_prompt_that_comes_while_nobody_decodes_starts_at_once(launcher: Launcher) -> None:
    story: Story = [[], [], late_prompt(2, 25)[1]]
    logs = run_story(launcher, story, async_scheduling=True)
    assert steps_of(logs[2], story[2][0].name(2, 0), "PREFILL")[0] == 25


@pytest.mark.parametrize("size", [2, 4])
def test_a_long_prompt_of_one_rank_goes_on_every_few_decode_steps(launcher: Launcher, size: int) -> None:
    story = long_prompt(size, num_tokens=300)
    logs = run_story(launcher, story, async_scheduling=True, **INTERVALS)
    chunks = steps_of(logs[-1], story[-1][0].name(size - 1, 0), "PREFILL")
    assert len(chunks) == 10  # of 32 tokens
    gaps = {later - earlier for earlier, later in itertools.pairwise(chunks)}
    assert gaps == {INTERVALS["prefill_interval_continue"] + 1}
    assert chunks[0] <= story[-1][0].step + INTERVALS["prefill_interval_any"]
