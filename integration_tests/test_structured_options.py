"""Every other option of a request keeps its promise under a grammar, or that request alone fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from drafts_testing.bench import EOS, Request
from structured_testing import tabled
from structured_testing.letters import id_of, ids
from thalweg.interfaces import CompletionOutput, GrammarSpec, SamplingParams

LETTERS = GrammarSpec.regex("[g-q]{6,40}")
"""None of the longer tokens fits."""
LENGTH = 48
FAILED = "structured_output_failed"
NOTHING_LEFT = "leave no token"
Said = Sequence[CompletionOutput]


@dataclass(frozen=True)
class Option:
    """What is asked for beside the grammar, and what holds of outputs then. plain: what is said without it."""

    asked: dict[str, Any]
    holds: Callable[[Said, Said], bool]


def _differs(said: Said, plain: Said) -> bool:
    return [output.token_ids for output in said] != [output.token_ids for output in plain]


def _without(text: str) -> Callable[[Said, Said], bool]:
    return lambda said, plain: all(text not in output.text for output in said) and _differs(said, plain)


OPTIONS = {
    "penalties": Option(
        {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 1.0},
        lambda said, plain: sum(map(_variety, said)) > sum(map(_variety, plain)),
    ),
    "bias": Option(
        {"logit_bias": {id_of("m"): 50.0}}, lambda said, _: all(set(output.text) == {"m"} for output in said)
    ),
    "bias for what is forbidden": Option({"logit_bias": {id_of("x"): 100.0}}, lambda said, plain: said == plain),
    "bad words": Option({"bad_words": ("h", "mn")}, _without("h")),
    "minimum": Option({"min_tokens": 20}, lambda said, _: all(len(output.token_ids) >= 20 for output in said)),
    "stop string": Option(
        {"stop": ("k",)},
        lambda said, plain: _without("k")(said, plain) and any(output.stop_reason == "k" for output in said),
    ),
    "stop token": Option(
        {"stop_token_ids": (id_of("j"),)},
        lambda said, plain: (
            any(output.token_ids[-1] == id_of("j") for output in said)
            and all(id_of("j") not in output.token_ids[:-1] for output in said)
        ),
    ),
    "filters": Option({"top_k": 3, "top_p": 0.9, "min_p": 0.05}, lambda said, _: True),
    "forced": Option(
        {"forced_token_ids": (-1, -1, id_of("i"), -1, id_of("q"))},
        lambda said, _: all((output.text[2], output.text[4]) == ("i", "q") for output in said),
    ),
    "log-probabilities": Option(
        {"logprobs": 2}, lambda said, _: all(len(output.logprobs or ()) == len(output.token_ids) for output in said)
    ),
}


def _variety(output: CompletionOutput) -> float:
    return len(set(output.token_ids)) / len(output.token_ids)


def requests(rule: str, spec: GrammarSpec | None = LETTERS, **asked: Any) -> list[Request]:
    """Some that differ in prompt and seed; greedy under rejection, where drafts change only what is drawn."""
    heat = 0.0 if rule == "rejection" else 1.0
    params = SamplingParams(temperature=heat, max_tokens=LENGTH, structured=spec, **asked)
    return [(ids(f"say {number}"), replace(params, seed=number)) for number in range(6)]


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_holds_with_and_without_drafts(name: str) -> None:
    rule: Literal["rejection", "coupled"] = ("rejection", "coupled")[list(OPTIONS).index(name) % 2]
    option, used = OPTIONS[name], tabled.setup(3, verification=rule)
    wanted = requests(rule, **option.asked)
    plain = tabled.serve(used, wanted)
    drafted = tabled.serve(replace(used, is_async=True), wanted, tabled.drafter_of(wanted, plain.finals))
    assert drafted.said == plain.said
    assert tabled.num_held(drafted) > 0
    for output in plain.said:
        matcher = tabled.shared_compiler().matcher(LETTERS)
        assert all(matcher.accept(token) for token in output.token_ids)
        assert matcher.is_finished == (EOS in output.token_ids)
    assert option.holds(plain.said, tabled.serve(used, requests(rule)).said)


HOPELESS: dict[str, tuple[GrammarSpec, dict[str, Any], int]] = {
    "every word is bad": (LETTERS, {"bad_words": tuple("ghijklmnopq")}, 0),
    "the minimum is beyond the end": (GrammarSpec.regex("[0-9]{4}"), {"min_tokens": 9}, 4),
    "a forced token is not allowed": (LETTERS, {"forced_token_ids": (-1, -1, -1, id_of("x"))}, 3),
    "a forced end comes too early": (LETTERS, {"forced_token_ids": (-1, -1, EOS)}, 2),
}
"""Specification, options, and how many tokens are said before nothing is left."""


@pytest.mark.parametrize("is_async", [False, True], ids=["in place", "overlapping"])
@pytest.mark.parametrize("has_drafts", [False, True], ids=["plain", "drafted"])
def test_a_request_whose_options_leave_nothing_fails_alone_and_keeps_what_it_said(
    has_drafts: bool, is_async: bool
) -> None:
    used = tabled.setup(3, verification="coupled")
    healthy = requests("coupled", LETTERS)[:3] + requests("coupled", None)[:3]
    expected = tabled.serve(used, healthy).said
    hopeless = [
        (ids("say"), SamplingParams(max_tokens=LENGTH, seed=1, structured=spec, **asked))
        for spec, asked, _ in HOPELESS.values()
    ]
    wanted = hopeless + healthy
    before = tabled.serve(used, wanted)
    drafter = tabled.drafter_of(wanted, before.finals) if has_drafts else None
    run = tabled.serve(replace(used, is_async=is_async), wanted, drafter)
    assert run.said == before.said
    assert run.said[len(hopeless) :] == expected
    for name, output, (_, _, num_said) in zip(HOPELESS, run.finals, HOPELESS.values(), strict=False):
        assert output.outputs[0].finish_reason == FAILED, name
        assert NOTHING_LEFT in (output.error or ""), name
        assert len(output.outputs[0].token_ids) == num_said, name


def test_of_several_outputs_those_fail_that_have_nothing_left() -> None:
    """A first letter after which the grammar is at its end, long before the minimum, and one after which it is not."""
    spec = GrammarSpec.regex("a|b[g-q]{30}")
    params = SamplingParams(n=8, temperature=2.0, seed=1, max_tokens=12, min_tokens=9, structured=spec)
    alone = [(ids("say"), replace(params, n=1, seed=1 + index)) for index in range(8)]
    used = tabled.setup(6, verification="coupled")
    expected = tabled.serve(used, alone)
    for changes in ({}, {"is_async": True}, {"draft_length": 3, "is_async": True}):
        output = tabled.serve(replace(used, **changes), [(ids("say"), params)]).finals[0]
        assert list(output.outputs) == [replace(said, index=index) for index, said in enumerate(expected.said)]
        assert NOTHING_LEFT in (output.error or "")
    ends = {said.text[:1]: said.finish_reason for said in expected.said}
    assert ends == {"a": FAILED, "b": "length"}


def test_all_outputs_of_a_prompt_fail_where_the_first_token_is_not_left() -> None:
    params = SamplingParams(n=3, seed=1, structured=LETTERS, forced_token_ids=(id_of("x"),))
    output = tabled.serve(tabled.setup(3), [(ids("say"), params)]).finals[0]
    assert [(said.finish_reason, said.token_ids) for said in output.outputs] == [(FAILED, ())] * 3
    assert NOTHING_LEFT in (output.error or "")
