"""The options of the engine that concern sampling reach an engine with a model, built as users build it."""

from __future__ import annotations

from typing import Any

from thalweg.engine import LLM, SamplingParams
from thalweg.interfaces import CompletionOutput

PARAMS = SamplingParams(max_tokens=8, ignore_eos=True, seed=3, temperature=2.0, top_k=20, logprobs=1)


def generate(checkpoint: str, **options: Any) -> CompletionOutput:
    with LLM(checkpoint, max_model_len=64, mode="plain", arithmetic="float32", environ={}, **options) as llm:
        [output] = llm.generate(prompt_token_ids=[[5, 6, 7, 8]], sampling_params=PARAMS, use_tqdm=False)
    return output.outputs[0]


def test_every_option_of_the_engine_changes_what_an_engine_with_a_model_says(small_checkpoint: str) -> None:
    plain = generate(small_checkpoint)
    assert plain.logprobs is not None
    assert plain.draws is None

    processed = generate(small_checkpoint, logprobs_mode="processed")
    assert processed.token_ids == plain.token_ids
    assert processed.logprobs is not None
    assert all(mine != theirs for mine, theirs in zip(plain.logprobs, processed.logprobs, strict=True))

    blacklist = plain.token_ids[:3]
    assert not set(blacklist) & set(generate(small_checkpoint, token_blacklist=blacklist).token_ids)

    likeliest = generate(small_checkpoint, force_top_k=1)
    assert likeliest.logprobs is not None
    pairs = zip(likeliest.token_ids, likeliest.logprobs, strict=True)
    assert all(next(iter(logprobs)) == token_id for token_id, logprobs in pairs)

    draws = generate(small_checkpoint, return_draws=True).draws
    assert draws is not None
    assert len(draws) == len(plain.token_ids)

    assert generate(small_checkpoint, verification="coupled").token_ids != plain.token_ids
    assert generate(small_checkpoint, batch_invariant=True) == plain
