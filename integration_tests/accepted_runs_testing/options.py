"""Requests whose every token depends on the tokens before it, in each of the ways that a request may ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from drafts_testing.bench import Request, make_tokenizer
from thalweg.interfaces import SamplingParams

VOCAB = 24
LENGTH = 32
TOKENIZER = make_tokenizer(VOCAB)
Texts = Sequence[Sequence[int]]
Change = Callable[[Sequence[int]], Mapping[str, Any]]
"""What a request asks for, given what it would say otherwise."""


def words_of(token_ids: Sequence[int]) -> dict[str, Any]:
    """Words of one to three letters that would be said, in all parts of the text."""
    text = TOKENIZER.decode(token_ids)
    return {"bad_words": (text[2:4], text[7:10], text[12:14], text[16], text[19:21])}


def forced_at(token_ids: Sequence[int]) -> dict[str, Any]:
    """Some tokens of the text, among them what would be said anyway, what would not, and several in a row."""
    others = [(token + 7) % VOCAB for token in token_ids]
    forced = [-1] * (LENGTH - 4)
    for place in (0, 3, 9, 10, 11, 16, 20, 21):
        forced[place] = others[place]
    for place in (5, 12, 17):
        forced[place] = token_ids[place]
    return {"forced_token_ids": tuple(forced)}


def stops_of(token_ids: Sequence[int]) -> dict[str, Any]:
    """Tokens that would end the text early, and may not before a minimum."""
    return {"stop_token_ids": tuple(sorted(set(token_ids[4:8]))), "min_tokens": 17, "ignore_eos": False}


def everything(token_ids: Sequence[int]) -> dict[str, Any]:
    """All of them together."""
    forced = forced_at(token_ids)["forced_token_ids"][:13]
    return {
        **words_of(token_ids),
        "stop_token_ids": (5, 9),
        "min_tokens": 19,
        "forced_token_ids": tuple(-1 if token in (5, 9) else token for token in forced),
        "repetition_penalty": 1.2,
        "presence_penalty": -0.4,
        "frequency_penalty": 0.6,
        "logit_bias": {3: 1.5, 4: -100.0, 6: -1.0},
    }


def _always(**options: Any) -> Change:
    return lambda token_ids: options


OPTIONS: dict[str, Change] = {
    "nothing": _always(),
    "repetition": _always(repetition_penalty=1.7),
    "repetition, liked": _always(repetition_penalty=0.8),
    "presence": _always(presence_penalty=1.3),
    "frequency": _always(frequency_penalty=0.7),
    "frequency, liked": _always(frequency_penalty=-0.3),
    "all penalties": _always(repetition_penalty=1.3, presence_penalty=-0.5, frequency_penalty=0.9),
    "bias": _always(logit_bias={2: 2.0, 7: -3.5, 11: 1.25, 20: -100.0}),
    "bad words": words_of,
    "minimum": stops_of,
    "forced": forced_at,
    "everything": everything,
}
WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.9},
    {"temperature": 1.2, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.7, "top_k": 6},
)
"""The first one is greedy."""


def plain_requests() -> list[Request]:
    """One request for every option and way, without the option. Prompts say some tokens twice."""
    base = SamplingParams(max_tokens=LENGTH, ignore_eos=True, logprobs=3)
    return [
        ((number % VOCAB, 5, number // VOCAB, 5, 11), replace(base, seed=number, **way))
        for number, way in enumerate(way for _ in OPTIONS for way in WAYS)
    ]


def with_options(requests: Sequence[Request], texts: Texts) -> list[Request]:
    """The same with their options. texts: what they say without."""
    changes = [change for change in OPTIONS.values() for _ in WAYS]
    return [
        (prompt, replace(params, **change(token_ids)))
        for (prompt, params), token_ids, change in zip(requests, texts, changes, strict=True)
    ]
