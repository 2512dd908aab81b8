"""At temperature 0 drafts change how many steps a text takes, and nothing about the text."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Literal

import pytest

from drafts_testing import drafters
from drafts_testing.bench import Request, Setup
from drafts_testing.tables import Memory, Tables
from drafts_testing.workloads import SLOW_WAYS, VOCAB, Served, make_requests, scatter, schedules

TARGET = Tables.random(VOCAB, seed=1, memory=Memory.EVERYTHING, grain=0.5)
"""Coarse logits: often several tokens are the likeliest, and the lowest id wins."""
NUM_PROMPTS, NUM_PROMPTS_OF_SLOW_WAYS = 300, 40
KINDS = {
    "right": drafters.drawn,
    "half right": drafters.half_right,
    "wrong": drafters.least_likely,
    "outside the vocabulary": drafters.illegal_at_times,
}
ACCEPTED = {"right": (3, 6), "half right": (1.5, 2.5), "wrong": (1, 1.01), "outside the vocabulary": (1.5, 2.5)}
"""Between which bounds the mean accepted length of fixed-length steps with five drafts lies."""


@cache
def requests(count: int) -> list[Request]:
    return make_requests(count, seed=count)


@cache
def plain(count: int) -> Served:
    return Served(Setup(target=TARGET, options={"max_num_seqs": count}), requests(count))


def speculating(kind: str, draft_length: int) -> Setup:
    return Setup(target=TARGET, draft_length=draft_length, choose=KINDS[kind], confide=drafters.random)


def test_the_requests_end_in_every_way() -> None:
    reasons = [(said.finish_reason, type(said.stop_reason)) for said in plain(NUM_PROMPTS).said]
    assert {("length", type(None)), ("stop", type(None)), ("stop", str), ("stop", int)} <= set(reasons)
    assert len({said.token_ids for said in plain(NUM_PROMPTS).said}) > NUM_PROMPTS / 2


@pytest.mark.parametrize("kind", KINDS)
def test_five_drafts_change_no_text_however_steps_are_cut(kind: str) -> None:
    is_mixed = kind == "half right"
    for way, changed in schedules(speculating(kind, 5), lengths_vary=True, preempts=is_mixed).items():
        if not is_mixed and way not in ("in place", "overlapping", "by plan", "by throughput, overlapping"):
            continue
        count = NUM_PROMPTS_OF_SLOW_WAYS if way in SLOW_WAYS else NUM_PROMPTS
        served = Served(changed, requests(count), scatter(count, 7, 20))
        assert served.said == plain(count).said, way
        assert not served.errors
        if "recomputed" in way:
            assert served.num_preemptions
        if way == "overlapping":
            low, high = ACCEPTED[kind]
            assert low <= served.accepted.mean() <= high
        if "throughput" in way and "measured" not in way:
            assert set(served.verified.tolist()) == {1, 2, 3, 4, 5, 6}, way


@pytest.mark.parametrize("rule", ["rejection", "coupled"])
@pytest.mark.parametrize("draft_length", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_fewer_drafts_and_the_other_rule_change_no_text_either(
    kind: str, draft_length: int, rule: Literal["rejection", "coupled"]
) -> None:
    setup = replace(speculating(kind, draft_length), verification=rule)
    ways = schedules(setup, lengths_vary=True, preempts=False)
    for way in ("overlapping", "by throughput, overlapping"):
        served = Served(ways[way], requests(NUM_PROMPTS), scatter(NUM_PROMPTS, 8, 20))
        assert served.said == plain(NUM_PROMPTS).said, way


def test_plain_steps_say_the_same_in_any_schedule() -> None:
    ways = schedules(Setup(target=TARGET), lengths_vary=False, preempts=True)
    for way, changed in ways.items():
        count = NUM_PROMPTS_OF_SLOW_WAYS
        served = Served(changed, requests(count), scatter(count, 9, 20))
        assert served.said == plain(count).said, way
