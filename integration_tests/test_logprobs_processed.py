"""In processed mode what is reported is what the token was drawn from: masks, penalties, temperature and filters."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from logprobs_testing.forward import assert_reported, text_logits
from logprobs_testing.plain import processed, shaped
from logprobs_testing.serving import Request, random_checkpoint, serve, text
from thalweg.engine import SamplingParams
from thalweg.engine.tokenizer import Tokenizer

NUM_TOKENS = 9
VOCAB = 512
OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.7},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 12},
    {"temperature": 0.9, "min_p": 0.05},
    {"temperature": 1.2, "top_p": 0.8, "top_k": 20, "min_p": 0.01},
    {"temperature": 0.8, "repetition_penalty": 1.4, "presence_penalty": 0.6, "frequency_penalty": -0.3},
    {"temperature": 0.9, "logit_bias": {9: 4.0, 30: -100.0, 44: 2.5}, "top_p": 0.95},
    {"temperature": 1.1, "min_tokens": 9, "stop_token_ids": (9, 10, 11, 12, 13), "ignore_eos": False, "top_p": 0.9},
    {"temperature": 1.0, "forced_token_ids": (-1, 40, -1, -1, 41, 42, -1), "top_k": 3},
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.8, "frequency_penalty": 1.0, "top_k": 5},
)
WAYS: dict[str, dict[str, Any]] = {
    "rejection": {"verification": "rejection"},
    "coupled, overlapping": {"verification": "coupled", "async_scheduling": True},
    "recomputed": {"verification": "coupled", "async_scheduling": True, "num_blocks": 4, "prefill_interval_all": 2},
}


@cache
def requests() -> list[Request]:
    base = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=6)
    return [
        (text(number, VOCAB, (1, 9, 21)[number % 3]), replace(base, seed=number, **options))
        for number, options in enumerate(OPTIONS)
    ]


@cache
def bad_word_requests() -> list[Request]:
    """Words of what is said without them."""
    plain = requests()[:2]
    said = [output.outputs[0].text for output in serve(random_checkpoint(), plain, draft_length=0).finals]
    return [
        (prompt, replace(params, bad_words=(words[3:5], words[8:11]), logprobs=60))
        for (prompt, params), words in zip(plain, said, strict=True)
    ]


@pytest.mark.parametrize("way", WAYS)
def test_they_are_the_filtered_log_softmax_of_what_a_whole_forward_pass_says(way: str) -> None:
    asked = [*requests(), *bad_word_requests()]
    if way == "recomputed":
        asked = [
            ([*text(number, VOCAB, 115), *prompt[:8]], params) for number, (prompt, params) in enumerate(asked[4:9])
        ]
    served = serve(random_checkpoint(), asked, logprobs_mode="processed", **WAYS[way])
    assert bool(served.num_preemptions) == (way == "recomputed")
    assert served.num_held
    for (prompt, params), output in zip(asked, served.finals, strict=True):
        said, words = output.outputs[0], bad_words(params)
        rows = text_logits(random_checkpoint().model, (*prompt, *said.token_ids))[len(prompt) - 1 : -1]
        expected = [
            processed(shaped(row, params, prompt, said.token_ids[:index], eos=1, bad_words=words), params)
            for index, row in enumerate(rows)
        ]
        assert params.logprobs is not None
        assert_reported(said.logprobs, said.token_ids, expected, params.logprobs, (way, params), params.is_greedy)


def bad_words(params: SamplingParams) -> list[list[int]]:
    config = random_checkpoint().model.config
    tokenizer = Tokenizer.from_file(
        random_checkpoint().path,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        vocab_size=config.vocab_size,
    )
    return [tokenizer.encode(start + word, add_bos=False) for word in params.bad_words for start in ("", " ")]
