"""Recorded traces, replayed step by step. A step compares everything that its entry holds."""

import json
from pathlib import Path

import pytest
from scheduler_testing.cores import Core
from scheduler_testing.replay import Replay

GOLDEN = Path(__file__).parent / "golden"
TRACES = (
    "nospec_sync",
    "preempt_recompute_nospec",
    "preempt_recompute_sync",
    "preempt_structured_never_recomputes",
    "random_4",
    "random_6",
    "random_10",
    "cp2_alignment",
)
UNCHANGED_UNDER_DEFAULT = ("nospec_sync", "cp2_alignment")


def replay(core: Core, name: str, policy: str) -> None:
    trace = json.loads((GOLDEN / f"{name}.json").read_text())
    run = Replay(core, trace, policy)
    for index, expected in enumerate(trace["steps"]):
        assert run.step(index) == expected, f"{name}.json, step {index}"
    assert run.final(len(trace["final"]["free_block_order_head"])) == trace["final"]
    assert run.num_records == trace["outputs"]
    assert not run.scheduler.has_unfinished


@pytest.mark.parametrize("name", TRACES)
def test_policy_reference_repeats_the_trace(core: Core, name: str) -> None:
    replay(core, name, "reference")


@pytest.mark.parametrize("name", UNCHANGED_UNDER_DEFAULT)
def test_policy_default_repeats_the_traces_that_show_no_defect(core: Core, name: str) -> None:
    replay(core, name, "default")
