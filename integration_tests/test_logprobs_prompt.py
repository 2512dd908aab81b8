"""What is reported of prompt tokens is what a whole forward pass says, over chunks of every size, or recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from logprobs_testing.forward import assert_reported, text_logits
from logprobs_testing.plain import processed
from logprobs_testing.serving import Request, Served, random_checkpoint, serve, text
from thalweg.engine import SamplingParams

LENGTHS = (13, 1, 2, 9)
VOCAB = 512
CHUNKED: dict[str, Any] = {"chunked_prefill": True, "max_num_batched_tokens": 128}
WAYS: dict[str, dict[str, Any]] = {
    "whole": {"draft_length": 0},
    "drafts": {"verification": "rejection", "async_scheduling": True},
    "chunks": CHUNKED | {"async_scheduling": True},
}


def make_requests(lengths: Sequence[int], **options: Any) -> list[Request]:
    counts = (4, 0, VOCAB, 1)
    base = SamplingParams(max_tokens=2, ignore_eos=True, seed=3, **options)
    return [
        (text(length, VOCAB, length), replace(base, prompt_logprobs=counts[number % 4], logprobs=number % 3 or None))
        for number, length in enumerate(lengths)
    ]


def check(asked: Sequence[Request], served: Served, *, mode: str = "raw") -> None:
    for (prompt, params), output in zip(asked, served.finals, strict=True):
        assert params.prompt_logprobs is not None
        before = text_logits(random_checkpoint().model, tuple(prompt))[:-1].double()
        expected = before.log_softmax(-1) if mode == "raw" else [processed(row, params) for row in before]
        assert_reported(output.prompt_logprobs, prompt[1:], list(expected), params.prompt_logprobs, len(prompt))


@pytest.mark.parametrize("way", WAYS)
def test_they_are_the_models_own(way: str) -> None:
    asked = make_requests((124, 1, 2, 129))
    served = serve(random_checkpoint(), asked, **WAYS[way])
    check(asked, served)
    assert bool(served.num_chunks) == (way == "chunks")


@pytest.mark.parametrize("size", range(1, max(LENGTHS) + 1))
def test_they_do_not_depend_on_the_chunks(size: int) -> None:
    asked = make_requests(LENGTHS, temperature=0.9)
    served = serve(random_checkpoint(), asked, piece=size, draft_length=0, **CHUNKED)
    check(asked, served)
    assert served.num_chunks == sum((length - 1) // size for length in LENGTHS)


@pytest.mark.parametrize("size", [17, 64, 127])
def test_long_prompts_are_cut_across_blocks(size: int) -> None:
    asked = make_requests((140,), temperature=0.0)
    served = serve(random_checkpoint(), asked, piece=size, verification="coupled", **CHUNKED)
    check(asked, served)


def test_a_preempted_request_reports_its_prompt_once() -> None:
    asked = [
        (prompt, replace(params, max_tokens=8, seed=number))
        for number, (prompt, params) in enumerate(make_requests((124, 122, 126), temperature=0.8))
    ]
    served = serve(
        random_checkpoint(), asked, verification="coupled", async_scheduling=True, num_blocks=4, prefill_interval_all=2
    )
    check(asked, served)
    assert served.num_preemptions


@pytest.mark.parametrize(
    "options", [{"temperature": 1.3, "top_p": 0.8}, {"temperature": 0.6, "top_k": 9, "min_p": 0.02}]
)
@pytest.mark.parametrize("size", [5, 200])
def test_processed_ones_have_the_requests_own_temperature_and_filters(options: dict[str, Any], size: int) -> None:
    """And no masks, biases and penalties: those are about outputs."""
    asked = make_requests(LENGTHS, **options, repetition_penalty=1.5, logit_bias={7: 3.0}, min_tokens=2)
    served = serve(random_checkpoint(), asked, piece=size, logprobs_mode="processed", **CHUNKED)
    check(asked, served, mode="processed")


def test_every_output_shares_them() -> None:
    asked = [(prompt, replace(params, n=2)) for prompt, params in make_requests(LENGTHS, temperature=1.0)]
    served = serve(random_checkpoint(), asked, verification="coupled", piece=6, **CHUNKED)
    check(asked, served)
    assert all(len(output.outputs) == 2 for output in served.finals)


def test_without_chunks_or_neighbours_they_are_equal_bit_for_bit() -> None:
    asked = make_requests((40, 13))
    alone = [serve(random_checkpoint(), [request], draft_length=0).finals[0].prompt_logprobs for request in asked]
    cut = serve(random_checkpoint(), asked, piece=11, **CHUNKED).finals
    assert [output.prompt_logprobs for output in cut] == alone
