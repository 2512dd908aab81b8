"""Ids, steps and counts are integers: a converted number would lose its fraction and spoil a later step."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from scheduler_testing.cores import Core
from scheduler_testing.driver import add
from scheduler_testing.sampler import Script, sample

from thalweg.scheduler.vote import plan_step

PROMPT = np.array([3, 4, 5], np.int32)


@pytest.mark.parametrize(
    "options", [{"max_tokens": 1.5}, {"max_tokens": 4.0}, {"eos_token_id": "1"}, {"checkpoints": [1.5]}]
)
def test_a_number_that_is_no_integer_is_refused_before_it_can_spoil_a_step(core: Core, options: dict[str, Any]) -> None:
    scheduler = core.scheduler()
    with pytest.raises(TypeError):
        add(scheduler, PROMPT, **options)
    for loaded in (1.5, 2.0):
        with pytest.raises(TypeError):
            scheduler.add_loaded(PROMPT, loaded, max_tokens=4, eos_token_id=1)
    with pytest.raises(TypeError):
        scheduler.add_loaded(PROMPT, 1, max_tokens=4, eos_token_id=1, prompt_length=3.0)
    assert not scheduler.has_unfinished
    sequence_id = add(scheduler, PROMPT)
    with pytest.raises(TypeError):
        scheduler.abort([sequence_id, 7.5])
    assert scheduler.abort([sequence_id]) == 1


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("release", (0.0,)),
        ("hold", (np.float32(0),)),
        ("release_one", (0.0,)),
        ("set_schedulable", (np.float32(0),)),
        ("memory_of", (0.0,)),
        ("fork", (np.float32(0),)),
        ("record_step_time", (np.float32(3), 64, 4.0, 1.0)),
        ("record_step_time", (3, 64.5, 4.0, 1.0)),
    ],
)
def test_an_id_or_a_count_that_is_no_integer_is_refused(core: Core, call: str, arguments: tuple[Any, ...]) -> None:
    scheduler = core.scheduler()
    assert add(scheduler, PROMPT) == 0
    plan_step(scheduler)
    with pytest.raises(TypeError):
        getattr(scheduler, call)(*arguments)


def test_the_result_of_half_a_step_is_refused(core: Core) -> None:
    scheduler = core.scheduler()
    add(scheduler, PROMPT)
    plan = plan_step(scheduler)
    good = sample(plan, {0: Script()}, 0)
    with pytest.raises(TypeError):
        scheduler.process(dataclasses.replace(good, step=float(plan.step)))
    scheduler.process(good)
