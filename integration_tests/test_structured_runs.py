"""Triggers, first answer tokens and end tokens inside runs of accepted drafts, and drafts that no grammar allows."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from accepted_runs_testing.watched import Watched
from drafts_testing import drafters
from drafts_testing.bench import EOS, Request
from drafts_testing.tables import Tables
from structured_testing import tabled
from structured_testing.drafter import GrammarDrafter
from structured_testing.letters import id_of, ids, tokenizer
from structured_testing.scripted import scripted
from thalweg.interfaces import GrammarSpec, SamplingParams

LETTERS = "abcdef"
THINK_END = ("</", "think", ">")
TRIGGER = tuple(map(id_of, THINK_END))
DIGITS = GrammarSpec.regex("[0-9]{3,9}")
IS_ASYNC = pytest.mark.parametrize("is_async", [False, True], ids=["in place", "overlapping"])
RULE = pytest.mark.parametrize("rule", ["rejection", "coupled"])


def chain(*more: str, **follows: tuple[str, ...]) -> Tables:
    """Says the letters, then the trigger; x wherever it may, and else sevens. more: said after the last letter."""
    texts = [*LETTERS, *more]
    pairs = {text: (after,) for text, after in pairwise(texts)}
    return scripted(pairs | follows, otherwise=("x", "7", "<end>"))


def requests(spec: GrammarSpec, **options: Any) -> list[Request]:
    """One per letter that the text may begin after."""
    params = SamplingParams(temperature=0.0, structured=spec, **({"max_tokens": 24} | options))
    return [(ids(letter), params) for letter in LETTERS]


def serve_with(
    target: Tables, wanted: list[Request], drafts: str, *, is_async: bool = False, rule: Any = "rejection"
) -> tuple[Watched, Watched]:
    """Without drafts, and with them. drafts: "right", "mixed", or "wanted": what the model would say unmasked."""
    used = tabled.setup(target=target, verification=rule, is_async=is_async)
    plain = tabled.serve(replace(used, is_async=False), wanted)
    if drafts == "wanted":
        return plain, tabled.serve(replace(used, draft_length=tabled.DRAFTS, choose=drafters.likeliest), wanted)
    drafter = tabled.drafter_of(wanted, plain.finals, is_right=drafts == "right")
    return plain, tabled.serve(used, wanted, drafter)


def texts_of(run: Watched) -> list[str]:
    return [tokenizer().decode(said.token_ids) for said in run.said]


@IS_ASYNC
@RULE
def test_the_end_of_thinking_and_the_first_answer_token_may_come_in_one_run(rule: str, is_async: bool) -> None:
    spec = replace(DIGITS, trigger_token_ids=TRIGGER)
    plain, drafted = serve_with(chain(*THINK_END), requests(spec, max_tokens=14), "right", is_async=is_async, rule=rule)
    assert texts_of(plain)[0] == "bcdef</think>777777"
    assert drafted.said == plain.said
    places = set()
    for said, runs in zip(drafted.said, drafted.runs, strict=True):
        first = said.token_ids.index(TRIGGER[-1]) + 1
        places.add(next(first - run.start for run in runs if run.start <= first < run.start + run.num_tokens))
    assert places == set(range(6))


@IS_ASYNC
@pytest.mark.parametrize("drafts", ["wanted", "mixed"])
def test_a_draft_that_the_grammar_forbids_is_refused_behind_a_trigger_in_the_same_run(
    drafts: str, is_async: bool
) -> None:
    spec = replace(DIGITS, trigger_token_ids=TRIGGER)
    plain, drafted = serve_with(chain(*THINK_END), requests(spec, max_tokens=14), drafts, is_async=is_async)
    assert drafted.said == plain.said
    assert all("x" not in text for text in texts_of(drafted))
    assert tabled.num_held(drafted) > 0


@IS_ASYNC
def test_no_draft_that_a_grammar_forbids_is_ever_accepted_however_much_the_model_wants_it(is_async: bool) -> None:
    eager = scripted({}, otherwise=("x", "7", "<end>"))
    plain, drafted = serve_with(eager, requests(DIGITS), "wanted", is_async=is_async)
    assert drafted.said == plain.said
    assert {tokenizer().decode(said.token_ids) for said in drafted.said} == {"7" * 9}
    assert tabled.num_held(drafted) == 0


@IS_ASYNC
@pytest.mark.parametrize("drafts", ["right", "wanted", "mixed"])
def test_from_the_bound_token_on_the_trigger_is_said_and_the_grammar_follows(drafts: str, is_async: bool) -> None:
    spec = replace(DIGITS, trigger_token_ids=TRIGGER, bound_token_id=id_of("c"))
    plain, drafted = serve_with(chain("c"), requests(spec, max_tokens=40), drafts, is_async=is_async)
    assert drafted.said == plain.said
    assert texts_of(plain)[:3] == [f"{free}c</think>777777777" for free in ("b", "", "def")]


@IS_ASYNC
@pytest.mark.parametrize("drafts", ["right", "wanted", "mixed"])
def test_the_end_token_comes_where_it_is_allowed_and_not_before(drafts: str, is_async: bool) -> None:
    impatient = scripted({}, otherwise=("<end>", "x", "7"))
    plain, drafted = serve_with(impatient, requests(DIGITS), drafts, is_async=is_async)
    assert drafted.said == plain.said
    for said in drafted.said:
        assert said.token_ids == (*ids("777"), EOS)
        assert (said.text, said.finish_reason, said.stop_reason) == ("777", "stop", None)


@cache
def beyond_the_end() -> tuple[list[Request], Tables, Watched, GrammarDrafter]:
    """Requests that go on after the end token, and drafts of what they say there."""
    target = scripted({"<end>": ("x",), "x": ("y",)}, otherwise=("<end>", "7"))
    wanted = [(prompt, replace(params, ignore_eos=True)) for prompt, params in requests(DIGITS)]
    free = tabled.serve(tabled.setup(target=target), wanted)
    return wanted, target, free, tabled.drafter_of(wanted, free.finals, is_right=True)


@IS_ASYNC
def test_a_request_that_ignores_the_end_token_goes_on_freely_after_it(is_async: bool) -> None:
    wanted, target, free, drafter = beyond_the_end()
    drafted = tabled.serve(tabled.setup(target=target, is_async=is_async), wanted, drafter)
    assert drafted.said == free.said
    for said in drafted.said:
        assert said.token_ids[:5] == (*ids("777"), EOS, id_of("x"))
        assert (len(said.token_ids), said.finish_reason) == (24, "length")
    assert tabled.num_held(drafted) > 0


@IS_ASYNC
def test_what_is_accepted_after_the_end_token_is_dropped(is_async: bool) -> None:
    wanted, target, _, drafter = beyond_the_end()
    ending = [(prompt, replace(params, ignore_eos=False)) for prompt, params in wanted]
    drafted = tabled.serve(tabled.setup(target=target, is_async=is_async), ending, drafter)
    assert all(said.token_ids == (*ids("777"), EOS) for said in drafted.said)
    assert all(runs[-1].num_tokens < runs[-1].num_accepted for runs in drafted.runs)


def test_outputs_of_one_request_follow_the_grammar_each_for_itself() -> None:
    spec = GrammarSpec.json({"type": "array", "items": {"enum": ["a", "b", 1, None]}, "maxItems": 4})
    params = SamplingParams(n=5, temperature=1.0, seed=7, max_tokens=40, structured=spec)
    alone = [(ids("say"), replace(params, n=1, seed=7 + index)) for index in range(5)]
    used = tabled.setup(5, verification="coupled")
    expected = [replace(said, index=index) for index, said in enumerate(tabled.serve(used, alone).said)]
    assert len({said.text for said in expected}) > 1
    for changes in ({}, {"is_async": True}, {"draft_length": 3}, {"draft_length": 3, "is_async": True}):
        outputs = tabled.serve(replace(used, **changes), [(ids("say"), params)]).finals[0].outputs
        assert list(outputs) == expected, changes


CHOICES = ["foo", "foobar", "größe = 10", "a\nb", "日本"]
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<v>",
        "content": {"type": "json_schema", "json_schema": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1}},
        "end": "</v>",
    },
}


@IS_ASYNC
def test_choices_and_structural_tags_are_followed_with_drafts_as_without(is_async: bool) -> None:
    specs = (GrammarSpec.choice(CHOICES), GrammarSpec.structural_tag(TAG))
    wanted = [
        (ids("say"), SamplingParams(seed=seed, temperature=1.5, max_tokens=60, structured=spec))
        for spec in specs
        for seed in range(6)
    ]
    used = tabled.setup(2, verification="coupled")
    plain = tabled.serve(used, wanted)
    drafted = tabled.serve(replace(used, is_async=is_async), wanted, tabled.drafter_of(wanted, plain.finals))
    assert drafted.said == plain.said
    assert {said.finish_reason for said in plain.said} == {"stop"}
    chosen = {said.text for said in plain.said[:6]}
    assert len(chosen) > 1
    assert chosen <= set(CHOICES)
    for said in plain.said[6:]:
        assert re.fullmatch(r"<v>\[\s*[12](\s*,\s*[12])*\s*\]</v>", said.text), said.text
