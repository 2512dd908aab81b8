"""Options that depend on the tokens before: with 0 to 5 accepted drafts per step every token is that without drafts."""

from __future__ import annotations

from functools import cache
from typing import Literal

import pytest

from accepted_runs_testing.known_texts import Script, always, changing
from accepted_runs_testing.options import LENGTH, OPTIONS, TOKENIZER, VOCAB, WAYS, plain_requests, with_options
from accepted_runs_testing.twins import Twins
from accepted_runs_testing.watched import Watched, assert_same, serve
from drafts_testing.bench import EOS, Request, Setup
from drafts_testing.tables import Memory, Tables
from logprobs_testing.plain import likeliest, shaped

TARGET = Tables.random(VOCAB, 6, Memory.EVERYTHING, spread=1.5, grain=0.25)
"""Coarse logits, so that equal ones are found, too."""
Rule = Literal["rejection", "coupled"]
SCRIPTS: dict[str, Script] = {f"{count} accepted": always(count) for count in range(6)} | {"changing": changing(2)}


def setup(rule: Rule) -> Setup:
    return Setup(target=TARGET, verification=rule)


@cache
def without_options() -> Watched:
    return serve(Setup(target=TARGET, verification="coupled", options={"max_num_seqs": 64}), plain_requests())


@cache
def requests(rule: Rule) -> list[Request]:
    """Under rejection those that are greedy."""
    every = with_options(plain_requests(), [said.token_ids for said in without_options().said])
    return every[:: len(WAYS)] if rule == "rejection" else every


@cache
def twins(rule: Rule) -> Twins:
    return Twins(setup(rule), requests(rule))


def test_every_option_changes_what_is_said() -> None:
    said = {name: 0 for name in OPTIONS}
    names = [name for name in OPTIONS for _ in WAYS]
    for name, ours, theirs in zip(names, twins("coupled").plain.said, without_options().said, strict=True):
        said[name] += ours.token_ids != theirs.token_ids
    assert said.pop("nothing") == 0
    assert all(count == len(WAYS) for count in said.values()), said


def test_what_is_said_without_drafts_is_what_the_options_promise() -> None:
    """Of greedy requests; the others are compared with it by their seeds alone."""
    for (prompt, params), said in zip(requests("rejection"), twins("rejection").plain.said, strict=True):
        words = [tuple(TOKENIZER.encode(word, add_bos=False)) for word in params.bad_words]
        rows = TARGET.after(TARGET.states((*prompt, *said.token_ids)))[len(prompt) - 1 :]
        for index, token in enumerate(said.token_ids):
            forced = (*(params.forced_token_ids or ()), *[-1] * LENGTH)[index]
            row = shaped(rows[index], params, prompt, said.token_ids[:index], eos=EOS, bad_words=words)
            assert token == (forced if forced >= 0 else likeliest(row)), (params, index)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("is_async", [False, True], ids=["in place", "overlapping"])
@pytest.mark.parametrize("rule", ["rejection", "coupled"])
def test_the_output_is_that_without_drafts(rule: Rule, is_async: bool, script: str) -> None:
    both = twins(rule)
    drafted = both.drafted(SCRIPTS[script], is_async=is_async)
    assert_same(drafted.finals, both.plain.finals, script)
    assert all(said.logprobs for said in drafted.said)
    # The first decode step of a request has placeholders, and the last run may go on past the text that is known.
    counts = [run.num_accepted - 1 for runs in drafted.runs for run in runs[2:-1]]
    assert set(counts) == (set(range(6)) if script == "changing" else {int(script[0])})
