"""Requests with random options share a batch; each says what it says alone, without drafts and without overlap."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from options_testing.mixes import make_mix, options_of
from options_testing.reports import check_reports
from options_testing.runs import Run
from thalweg.interfaces import SamplingParams

SEEDS, COUNT = range(14), 6


@cache
def served(seed: int) -> tuple[Run, dict[int, str], str]:
    mix = make_mix(seed, COUNT)
    run, different = mix.differences()
    return run, different, f"mix {seed}, {mix.way}: {mix.setup}"


@pytest.mark.parametrize("seed", SEEDS)
def test_random_options_in_one_batch_say_what_each_request_says_alone(seed: int) -> None:
    run, different, mix = served(seed)
    assert different == {}, (mix, [run.requests[number] for number in different])
    check_reports(run)


def test_the_mixes_hold_every_option_and_end_in_every_way() -> None:
    runs = [served(seed)[0] for seed in SEEDS]
    counts = Counter(name for run in runs for _, params in run.requests for name in options_of(params))
    assert set(counts) == {*SamplingParams.__dataclass_fields__} - {"structured"}
    assert min(counts.values()) > 5, counts
    outputs = [output for run in runs for said in run.said for output in said.outputs]
    assert {(output.finish_reason, type(output.stop_reason)) for output in outputs} >= {
        ("length", type(None)),
        ("stop", type(None)),
        ("stop", str),
        ("stop", int),
    }
    assert sum(output.metrics.num_preemptions for run in runs for output in run.finals)
    assert sum((run.rows("num_accepted") > 1).sum() for run in runs) > 100
