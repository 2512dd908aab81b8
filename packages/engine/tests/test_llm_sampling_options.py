"""Sampling options from `LLM` on: which of them refuse a prompt, a call or an engine, and that the rest are served."""

from collections.abc import Iterator
from typing import Any

import pytest

from thalweg.engine import LLM, SamplingParams
from thalweg.interfaces import ConfigError

OPTIONS: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 128, "arithmetic": "float32"}


@pytest.fixture(scope="module")
def llm(checkpoint: str) -> Iterator[LLM]:
    with LLM(checkpoint, **OPTIONS) as llm:
        yield llm


def vocab_size(llm: LLM) -> int:
    return llm.get_tokenizer().vocab_size


def test_parameters_that_the_vocabulary_refuses_fail_their_prompt_alone(llm: LLM) -> None:
    outside = vocab_size(llm)
    bad: list[dict[str, Any]] = [
        {"stop_token_ids": (outside,)},
        {"logit_bias": {outside: 1.0}},
        {"forced_token_ids": (outside,)},
        {"min_tokens": 1, "stop_token_ids": tuple(range(outside))},
    ]
    params = [SamplingParams(max_tokens=2), *[SamplingParams(n=3, logprobs=0, **values) for values in bad]]
    served, *refused = llm.generate(["x"] * 5, params, use_tqdm=False)
    assert served.error is None
    for output, values in zip(refused, bad, strict=True):
        assert output.error is not None
        assert output.finished
        assert next(iter(values)) in output.error
        assert [completion.index for completion in output.outputs] == [0, 1, 2]
        assert all(one.finish_reason == "error" and one.logprobs == () for one in output.outputs)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n": 2, "temperature": 0}, "n is 2 and temperature is 0"),
        ({"min_tokens": 3, "max_tokens": 2}, "min_tokens is 3 and max_tokens is 2"),
        ({"stop": ["a", ""]}, "stop contains ''"),
        ({"logit_bias": {"x": 1}}, "logit_bias is 'x'"),
    ],
)
def test_parameters_that_are_bad_by_themselves_fail_the_call(llm: LLM, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        llm.generate(["a", "b"], [{"max_tokens": 1}, params], use_tqdm=False)
    assert not llm.engine.has_unfinished()


def test_penalties_beyond_float32_are_served_and_hurt_nobody(llm: LLM) -> None:
    plain = SamplingParams(seed=1, max_tokens=6, ignore_eos=True)
    extreme = [
        SamplingParams(seed=1, max_tokens=6, ignore_eos=True, repetition_penalty=penalty, temperature=temperature)
        for penalty in (10**400, 1e300, 5e-324)
        for temperature in (1e-5, 1.0, 10**400)
    ]
    alone = llm.generate("hello", plain, use_tqdm=False)[0]
    served, *others = llm.generate(["hello"] * 10, [plain, *extreme], use_tqdm=False)
    assert served.outputs == alone.outputs
    assert [output.error for output in others] == [None] * 9


def test_outputs_of_an_engine_that_reports_draws_have_draws_when_they_are_refused_too(checkpoint: str) -> None:
    with LLM(checkpoint, **OPTIONS, return_draws=True) as llm:
        served, refused = llm.generate(["x", ""], SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)
    assert served.outputs[0].draws is not None
    assert len(served.outputs[0].draws) == 2
    assert refused.error is not None
    assert refused.outputs[0].draws == ()


def test_a_blacklist_that_does_not_fit_is_refused_before_the_weights_are_read(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thalweg.engine.loading.Model.load", None)
    with pytest.raises(ConfigError, match=r"token_blacklist contains 1000000; the model has token ids 0\.\."):
        LLM(checkpoint, **OPTIONS, token_blacklist=(3, 1_000_000))


def test_a_thousand_stop_strings_are_served(llm: LLM) -> None:
    params = SamplingParams(seed=3, max_tokens=12, ignore_eos=True)
    free = llm.generate("hello", params, use_tqdm=False)[0].outputs[0]
    stop = tuple(f"never {index}" for index in range(1000))
    assert llm.generate("hello", {"stop": stop, "seed": 3, "max_tokens": 12, "ignore_eos": True}, use_tqdm=False)[
        0
    ].outputs == (free,)
    last = next(character for character in free.text if character.isprintable())
    stopped = llm.generate(
        "hello", SamplingParams(seed=3, max_tokens=12, ignore_eos=True, stop=(*stop, last)), use_tqdm=False
    )[0].outputs[0]
    assert (stopped.stop_reason, stopped.text) == (last, free.text.partition(last)[0])
