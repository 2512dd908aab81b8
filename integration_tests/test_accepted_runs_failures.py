"""Requests that break or are aborted inside a run of accepted drafts keep what was said, and others notice nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import pytest

from accepted_runs_testing.known_texts import always, changing
from accepted_runs_testing.options import VOCAB, WAYS, plain_requests, with_options
from accepted_runs_testing.poisoned import POISONS, PoisonedTables
from accepted_runs_testing.stops import FIRST_RUN, RUN
from accepted_runs_testing.twins import Twins
from accepted_runs_testing.watched import assert_same, serve
from drafts_testing.bench import Bench, Request, Setup
from drafts_testing.tables import Memory, Tables
from thalweg.interfaces import SamplingParams

TARGET = Tables.random(VOCAB, 8, Memory.EVERYTHING, spread=1.5)
Rule = Literal["rejection", "coupled"]
START = FIRST_RUN + RUN
"""Where the run begins in which requests break."""
BASE = SamplingParams(max_tokens=START + RUN + 3, ignore_eos=True, logprobs=2)


@dataclass(frozen=True)
class Broken:
    """A request whose model breaks at a place of the run, and whether it ends before that."""

    request: Request
    place: int
    poison: float
    text: tuple[int, ...]
    """Prompt and output up to where the model breaks."""
    ends_before: bool


@cache
def neighbours(rule: Rule) -> list[Request]:
    """With every option. Under rejection the greedy ones."""
    plain = serve(Setup(target=TARGET, verification="coupled", options={"max_num_seqs": 64}), plain_requests())
    every = with_options(plain_requests(), [said.token_ids for said in plain.said])
    return every[:: len(WAYS)] if rule == "rejection" else every


@cache
def broken(rule: Rule) -> list[Broken]:
    """Each poison at every place, alone, one token after a stop or the length, and at a stop."""
    places = [(place, poison) for place in range(RUN) for poison in POISONS]
    params = replace(BASE, temperature=0.0 if rule == "rejection" else 0.9)
    requests: list[Request] = [((number, 3, 7, 7), replace(params, seed=number)) for number in range(len(places))]
    setup = Setup(target=TARGET, verification="coupled", options={"max_num_seqs": len(requests)})
    said = [said.token_ids for said in serve(setup, requests).said]
    return [
        Broken((prompt, replace(params, **changes)), place, poison, (*prompt, *token_ids[: START + place]), ends_before)
        for (place, poison), (prompt, params), token_ids in zip(places, requests, said, strict=True)
        for changes, ends_before in _ends(token_ids, START + place)
    ]


def _ends(token_ids: Sequence[int], index: int) -> Iterator[tuple[dict[str, Any], bool]]:
    """What a request that breaks at this index asks for, and whether that ends it before."""
    yield {}, False
    yield {"max_tokens": index}, True
    if token_ids[index - 1] not in token_ids[: index - 1]:
        yield {"stop_token_ids": (token_ids[index - 1],)}, True
    if token_ids[index] not in token_ids[:index]:
        yield {"stop_token_ids": (token_ids[index],)}, False


@cache
def twins(rule: Rule) -> Twins:
    """Those that break, then their neighbours."""
    cases = broken(rule)
    setup = Setup(target=PoisonedTables(TARGET, [(case.text, case.poison) for case in cases]), verification=rule)
    return Twins(setup, [*(case.request for case in cases), *neighbours(rule)], healthy=TARGET)


@cache
def healthy(rule: Rule) -> Twins:
    return Twins(Setup(target=TARGET, verification=rule), neighbours(rule))


@pytest.mark.parametrize("is_async", [False, True], ids=["in place", "overlapping"])
@pytest.mark.parametrize("rule", ["rejection", "coupled"])
def test_a_model_that_breaks_inside_a_run_ends_that_request_alone(rule: Rule, is_async: bool) -> None:
    both, cases = twins(rule), broken(rule)
    drafted = both.drafted(always(5), is_async=is_async)
    assert_same(drafted.finals, both.plain.finals, "drafted")
    untouched = [replace(output, request_id=str(n)) for n, output in enumerate(drafted.finals[len(cases) :])]
    assert_same(untouched, healthy(rule).plain.finals, "neighbours")
    assert {case.place for case in cases if case.ends_before} == set(range(RUN))
    for number, case in enumerate(cases):
        output, said = drafted.finals[number], drafted.said[number]
        assert len(said.token_ids) == START + case.place
        assert (said.finish_reason == "error") == (not case.ends_before)
        assert (output.error is None) == case.ends_before
        run = next((run for run in drafted.runs[number] if run.start == START), None)
        assert run is None if case.place == 0 and case.ends_before else run is not None


@pytest.mark.parametrize("is_async", [False, True], ids=["in place", "overlapping"])
@pytest.mark.parametrize("rule", ["rejection", "coupled"])
def test_an_abort_leaves_the_others_as_they_are(rule: Rule, is_async: bool) -> None:
    """One request of three is aborted, every step some of them, in runs of every length."""
    both = healthy(rule)
    aborted = {str(number): 1 + number // 3 % 9 for number in range(0, len(both.requests), 3)}

    def abort(bench: Bench, step: int) -> None:
        bench.engine.abort_request([name for name, when in aborted.items() if when == step])

    drafted = both.drafted(changing(3), abort, is_async=is_async)
    num_aborted = 0
    for ours, theirs in zip(drafted.finals, both.plain.finals, strict=True):
        if ours.outputs[0].finish_reason == "abort":
            num_aborted += 1
            mine, whole = ours.outputs[0], theirs.outputs[0]
            assert ours.request_id in aborted
            assert mine.token_ids == whole.token_ids[: len(mine.token_ids)]
            assert mine.logprobs == (whole.logprobs or ())[: len(mine.token_ids)]
            assert whole.text.startswith(mine.text)
        else:
            assert_same([ours], [theirs], "neighbour")
    assert num_aborted >= len(aborted) - 2 > 0
