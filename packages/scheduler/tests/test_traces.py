"""Recorded traces, replayed step by step. A step compares everything that its entry holds."""

import json
from pathlib import Path
from typing import Any

import pytest
from scheduler_testing.communicator import Group
from scheduler_testing.cores import Core
from scheduler_testing.replay import Replay

GOLDEN = Path(__file__).parent / "golden"
TRACES = (
    "abort_mix",
    "basic_spec_zos",
    "chunk_checkpoints",
    "cp2_alignment",
    "default_intervals_70_100",
    "eos_inside_accepted_drafts",
    "ignore_eos",
    "ignored_too_long",
    "max_num_seqs_limit",
    "no_chunking_budget",
    "nospec_sync",
    "preempt_recompute_nospec",
    "preempt_recompute_sync",
    "preempt_stop_zos",
    "preempt_structured_never_recomputes",
    "prompt_engine",
    "random_0",
    "random_1",
    "random_3",
    "random_4",
    "random_6",
    "random_7",
    "random_9",
    "random_10",
    "random_12",
    "state_slots_limit",
    "varlen_sync",
    "watermark",
)
GROUP_TRACES = ("dp2_all1_any3", "dp2_both_ranks", "dp2_lonely_rank", "dp2_running_full")
UNCHANGED_UNDER_DEFAULT = (
    "basic_spec_zos",
    "chunk_checkpoints",
    "cp2_alignment",
    "default_intervals_70_100",
    "eos_inside_accepted_drafts",
    "ignore_eos",
    "no_chunking_budget",
    "nospec_sync",
    "prompt_engine",
    "varlen_sync",
    "watermark",
)
GROUP_UNCHANGED_UNDER_DEFAULT = ("dp2_both_ranks",)


def load(name: str) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return trace


def replay(core: Core, name: str, policy: str) -> None:
    trace = load(name)
    run = Replay(core, trace["config"], trace["requests"], policy)
    for index, expected in enumerate(trace["steps"]):
        actual = run.flush(index) if expected.get("flush") else run.step(index)
        assert actual == expected, f"{name}.json, step {index}"
    assert run.final(len(trace["final"]["free_block_order_head"])) == trace["final"]
    assert run.outputs() == trace["outputs"]
    assert not run.scheduler.has_unfinished


def replay_group(core: Core, name: str, policy: str) -> None:
    """Ranks side by side, joined by their votes alone; their entries hold fewer keys."""
    trace = load(name)
    ranks = trace["ranks"]
    group = Group(len(ranks))
    runs = [
        Replay(core, trace["config"], rank["requests"], policy, group.member(index)) for index, rank in enumerate(ranks)
    ]
    *steps, last = zip(*(rank["steps"] for rank in ranks), strict=True)
    for index, expected in enumerate(steps):
        for run in runs:
            run.arrive(index)
        plans = group.run([run.plan for run in runs])
        assert runs[0].flags == runs[1].flags
        for run, plan, entry in zip(runs, plans, expected, strict=True):
            assert same_keys(run.finish(plan), entry) == entry, f"{name}.json, step {index}"
    for run, rank, entry in zip(runs, ranks, last, strict=True):
        assert same_keys(run.flush(len(steps)), entry) == entry
        assert same_keys(run.final(0), rank["final"]) == rank["final"]
        assert not run.scheduler.has_unfinished
    group.close()


def same_keys(actual: Any, expected: Any) -> Any:
    """What of the actual value the recording speaks of."""
    if isinstance(expected, dict):
        return {key: same_keys(actual[key], expected[key]) for key in expected}
    if isinstance(expected, list) and len(actual) == len(expected):
        return [same_keys(*pair) for pair in zip(actual, expected, strict=True)]
    return actual


@pytest.mark.parametrize("name", TRACES)
def test_policy_reference_repeats_the_trace(core: Core, name: str) -> None:
    replay(core, name, "reference")


@pytest.mark.parametrize("name", UNCHANGED_UNDER_DEFAULT)
def test_policy_default_repeats_the_traces_that_show_no_defect(core: Core, name: str) -> None:
    replay(core, name, "default")


@pytest.mark.parametrize("name", GROUP_TRACES)
def test_policy_reference_repeats_the_trace_of_a_group(core: Core, name: str) -> None:
    replay_group(core, name, "reference")


@pytest.mark.parametrize("name", GROUP_UNCHANGED_UNDER_DEFAULT)
def test_policy_default_repeats_the_trace_of_a_group_that_shows_no_defect(core: Core, name: str) -> None:
    replay_group(core, name, "default")


def test_every_recorded_trace_is_replayed() -> None:
    recorded = {path.stem for path in GOLDEN.glob("*.json") if '"config"' in path.read_text()[:400]}
    assert recorded == {*TRACES, *GROUP_TRACES}
    assert len(recorded) == 32
