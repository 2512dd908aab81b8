"""A stop at any place of a run of accepted drafts, and a length that is crossed in the same run, as without drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

import pytest

from accepted_runs_testing.known_texts import always, changing
from accepted_runs_testing.stops import FIRST_RUN, KINDS, RUN, VOCAB, Stop, stop_tables, stops_at
from accepted_runs_testing.twins import Twins
from accepted_runs_testing.watched import Watched, assert_same, serve
from drafts_testing.bench import Request, Setup, make_tokenizer
from thalweg.interfaces import SamplingParams

TARGET = stop_tables(5)
NUM_TEXTS = 500
TOKENIZER = make_tokenizer(VOCAB)
Rule = Literal["rejection", "coupled"]
RUNS = {"first": FIRST_RUN, "second": FIRST_RUN + RUN}
"""Where the run begins that is cut."""


@cache
def endless(temperature: float) -> list[tuple[Request, Sequence[int]]]:
    """Requests that never stop, and what they say."""
    params = SamplingParams(temperature=temperature, top_p=0.9, max_tokens=FIRST_RUN + 2 * RUN, ignore_eos=True)
    params = replace(params, logprobs=2)
    requests: list[Request] = [
        ((number % VOCAB, number // VOCAB, 7), replace(params, seed=number)) for number in range(NUM_TEXTS)
    ]
    setup = Setup(target=TARGET, verification="coupled", options={"max_num_seqs": NUM_TEXTS})
    return [(request, said.token_ids) for request, said in zip(requests, serve(setup, requests).said, strict=True)]


@cache
def twins(rule: Rule, temperature: float, start: int) -> tuple[list[Stop], Twins]:
    """Every kind of stop at each place of the run that begins there, with every length that ends in it or after it."""
    lengths = [*range(start + 1, start + RUN + 1), start + RUN + 4]
    places = [(kind, index) for kind in KINDS for index in range(start, start + RUN)]
    stops = [stop for kind, index in places for stop in stops_at(index, kind, endless(temperature), lengths)]
    return stops, Twins(Setup(target=TARGET, verification=rule), [stop.request for stop in stops])


def is_whole_run(watched: Watched, number: int, start: int) -> bool:
    """Whether a request had all five drafts of the run that begins there accepted, whatever was cut off later."""
    return any(run.start == start and run.num_accepted == RUN for run in watched.runs[number])


@pytest.mark.parametrize("start", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize(("rule", "temperature"), [("rejection", 0.0), ("coupled", 0.8)])
@pytest.mark.parametrize("is_async", [False, True], ids=["in place", "overlapping"])
def test_the_output_is_that_without_drafts(rule: Rule, temperature: float, start: int, is_async: bool) -> None:
    stops, both = twins(rule, temperature, start)
    drafted = both.drafted(always(5), is_async=is_async)
    assert_same(drafted.finals, both.plain.finals, "drafted")
    assert all(said.logprobs for said in drafted.said)
    met = {
        (stop.kind, stop.index - start, min(stop.params.max_tokens - 1 - start, RUN))
        for number, stop in enumerate(stops)
        if is_whole_run(drafted, number, start)
    }
    assert met == {(kind, place, length) for kind in KINDS for place in range(RUN) for length in range(RUN + 1)}


@pytest.mark.parametrize("is_async", [False, True], ids=["in place", "overlapping"])
def test_it_is_the_same_when_fewer_drafts_hold(is_async: bool) -> None:
    _, both = twins("coupled", 0.8, RUNS["second"])
    drafted = both.drafted(changing(1), is_async=is_async)
    assert_same(drafted.finals, both.plain.finals, "drafted")
    assert {run.num_accepted for runs in drafted.runs for run in runs if run.is_decode} == set(range(1, RUN + 1))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_output_without_drafts_ends_as_the_request_says(temperature: float) -> None:
    """What the others are compared with: cut from a text without end."""
    stops, both = twins("coupled" if temperature else "rejection", temperature, RUNS["second"])
    texts = {(prompt, params.seed): token_ids for (prompt, params), token_ids in endless(temperature)}
    seen = Counter[str]()
    for stop, said in zip(stops, both.plain.said, strict=True):
        params, text = stop.params, texts[stop.request[0], stop.params.seed]
        if temperature and params.min_tokens:
            continue  # without what may not be drawn yet, other tokens are more likely
        if stop.is_reached:
            seen["stop"] += 1
            reason = params.stop[:1] or params.stop_token_ids[:1] or (None,)
            assert (said.finish_reason, said.stop_reason) == ("stop", reason[0])
            assert said.token_ids == text[: stop.index + 1]
            whole = TOKENIZER.decode(said.token_ids)
            assert said.text == (whole[: whole.index(params.stop[0])] if params.stop else whole)
        elif params.max_tokens <= stop.index:
            seen["length"] += 1
            assert (said.finish_reason, said.stop_reason) == ("length", None)
            assert said.token_ids == text[: params.max_tokens]
            assert said.text == TOKENIZER.decode(said.token_ids)
        else:
            seen["minimum"] += 1
            assert len(said.token_ids) > min(stop.index + 1, params.max_tokens - 1)
    assert seen["stop"] == len(KINDS) * sum(range(2, RUN + 2)) * (1 if temperature else 2)
    assert seen["length"] == len(KINDS) * (sum(range(1, RUN)) + (0 if temperature else RUN - 1))
    assert bool(seen["minimum"]) == (temperature == 0)
