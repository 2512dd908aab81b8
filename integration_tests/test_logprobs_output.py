"""What is reported of output tokens is what a whole forward pass over prompt and output says, however it was served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from logprobs_testing.forward import assert_reported, text_logits
from logprobs_testing.serving import Checkpoint, Request, Served, random_checkpoint, recorded, serve, text
from thalweg.engine import SamplingParams

NUM_TOKENS = 7
OPTIONS: dict[int, dict[str, Any]] = {
    1: {"logit_bias": {9: 5.0, 11: -100.0}, "forced_token_ids": (-1, -1, 40, 41), "repetition_penalty": 1.5},
    2: {"min_tokens": NUM_TOKENS, "stop_token_ids": tuple(range(100, 180)), "min_p": 0.01, "presence_penalty": 1.0},
    3: {"frequency_penalty": 2.0, "bad_words": ("e", "th")},
}
STEP_TIMES = tuple((size, 10.0 + 2 * size) for size in range(1, 49))
DRAFTED: dict[str, dict[str, Any]] = {
    "no drafts": {"verification": "coupled", "draft_length": 0},
    "rejection": {"verification": "rejection"},
    "rejection, overlapping": {"verification": "rejection", "async_scheduling": True},
    "coupled, overlapping, one draft": {"verification": "coupled", "async_scheduling": True, "draft_length": 1},
    "rejection, lengths vary": {"variable_length": True, "step_times": STEP_TIMES},
    "coupled, overlapping, lengths vary": {
        "verification": "coupled",
        "async_scheduling": True,
        "variable_length": True,
        "step_times": STEP_TIMES,
    },
    "recomputed": {"verification": "coupled", "async_scheduling": True, "num_blocks": 4, "prefill_interval_all": 2},
    "chunks": {
        "verification": "coupled",
        "async_scheduling": True,
        "chunked_prefill": True,
        "max_num_batched_tokens": 128,
    },
}


@cache
def requests(vocab_size: int) -> list[Request]:
    """Greedy and drawn, of prompts shorter and longer than windows and blocks, with lists of many lengths.

    What some of them do to their logits is not reported: the model does not know of it.
    """
    made: list[Request] = []
    for number, length in enumerate((1, 20, 124, 126, 40, 7)):
        params = SamplingParams(
            max_tokens=NUM_TOKENS,
            seed=number,
            temperature=(0.0, 0.7, 1.2)[number % 3],
            top_p=(1.0, 0.8)[number % 2],
            ignore_eos=True,
            logprobs=(5, 0, 20, vocab_size, 1, None)[number],
        )
        params = replace(params, **OPTIONS.get(number, {}))
        made.append((text(number, vocab_size, length), params))
    return made


def check(checkpoint: Checkpoint, asked: Sequence[Request], served: Served) -> None:
    """Every output of every request against its own forward pass."""
    for (prompt, params), output in zip(asked, served.finals, strict=True):
        for said in output.outputs:
            if params.logprobs is None:
                assert said.logprobs is None
                continue
            assert len(said.token_ids) == params.max_tokens
            rows = text_logits(checkpoint.model, (*prompt, *said.token_ids))[len(prompt) - 1 : -1]
            expected = list(rows.double().log_softmax(-1))
            assert_reported(said.logprobs, said.token_ids, expected, params.logprobs, (len(prompt), said.index))


@cache
def served_in(way: str) -> Served:
    """The requests on the recorded model."""
    return serve(recorded(), requests(256), **DRAFTED[way])


@pytest.mark.parametrize("way", DRAFTED)
def test_they_are_the_models_own(way: str) -> None:
    served = served_in(way)
    check(recorded(), requests(256), served)
    assert bool(served.num_held) == (way != "no drafts")
    assert bool(served.num_preemptions) == (way == "recomputed")
    assert bool(served.num_chunks) == (way == "chunks")
    if "vary" in way:
        assert len(set(served.verify_lengths)) > 2


@pytest.mark.parametrize("way", ["rejection, overlapping", "coupled, overlapping, lengths vary"])
def test_they_are_of_another_model_too(way: str) -> None:
    checkpoint = random_checkpoint()
    asked = requests(checkpoint.model.config.vocab_size)[:4]
    check(checkpoint, asked, serve(checkpoint, asked, **DRAFTED[way]))


@pytest.mark.parametrize("way", ["rejection", "coupled, overlapping, one draft", "recomputed"])
def test_every_output_of_a_request_has_its_own(way: str) -> None:
    several = [
        (prompt, replace(params, n=3, temperature=0.9, logprobs=4, max_tokens=6))
        for prompt, params in requests(256)[:2]
    ]
    served = serve(recorded(), several, **DRAFTED[way])
    check(recorded(), several, served)
    assert all(len({said.token_ids for said in output.outputs}) == 3 for output in served.finals)


def test_without_drafts_neighbours_and_chunks_they_are_equal_bit_for_bit() -> None:
    """Not only to the tolerance: a row of logits does not depend on what is computed with it."""
    greedy = [number for number, (_, params) in enumerate(requests(256)) if params.is_greedy]
    asked = [requests(256)[number] for number in greedy]
    alone = serve(recorded(), asked, draft_length=0, async_scheduling=False, max_num_seqs=1).finals
    for way in DRAFTED:
        finals = served_in(way).finals
        assert [finals[number].outputs for number in greedy] == [output.outputs for output in alone], way
