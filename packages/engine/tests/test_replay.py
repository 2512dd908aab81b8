"""Bounded replay of prompts through the engine, with the embedded checkpoint: window 64, at most six tokens back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from thalweg.engine import LLM, SamplingParams
from thalweg.interfaces import ConfigError

KEEP = 70
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
LENGTHS = (130, 71, 20)


def prompts(lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    random = np.random.default_rng(5)
    return [random.integers(5, 4096, length).tolist() for length in lengths]


def tokens(lengths: Sequence[int] = LENGTHS, **options: Any) -> list[tuple[int, ...]]:
    with LLM(**{"max_model_len": 256, "max_num_seqs": 8} | options) as llm:
        outputs = llm.generate(prompt_token_ids=prompts(lengths), sampling_params=GREEDY, use_tqdm=False)
    assert all(output.error is None for output in outputs)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module")
def masked() -> list[tuple[int, ...]]:
    return tokens(replay="mask", replay_keep_tokens=KEEP)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"draft_length": 0},
        {"chunked_prefill": True, "max_num_batched_tokens": 128, "async_scheduling": True, "check_lengths": True},
    ],
    ids=["whole prompts", "without drafts", "chunks, asynchronous"],
)
def test_compact_writes_what_mask_writes(options: dict[str, Any], masked: list[tuple[int, ...]]) -> None:
    assert tokens(replay="compact", replay_keep_tokens=KEEP, **options) == masked


def test_prompts_that_are_kept_whole_are_exact() -> None:
    lengths = (75, 20)
    assert tokens(lengths, replay="compact", replay_keep_tokens=75) == tokens(lengths)


def test_it_is_an_approximation() -> None:
    """Were nothing cut, the tests above would compare equal things."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=1)
    found = []
    for replay in ("off", "mask"):
        with LLM(max_model_len=256, replay=replay, replay_keep_tokens=KEEP) as llm:
            outputs = llm.generate(prompt_token_ids=prompts((130, 20)), sampling_params=params, use_tqdm=False)
        found.append([output.outputs[0].logprobs for output in outputs])
    (cut_off, short_off), (cut_mask, short_mask) = found
    assert cut_off != cut_mask
    assert short_off == short_mask


def test_preempted_prompts_are_replayed_again_and_end() -> None:
    """What is computed anew is kept from the sequence's end as it is then, so tokens may be others; none are lost."""
    options = {"max_model_len": 160, "max_num_seqs": 2, "num_blocks": 4}
    with LLM(replay="compact", replay_keep_tokens=KEEP, **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        asked = prompts((124, 125))
        outputs = llm.generate(prompt_token_ids=asked, sampling_params=params, use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    assert [len(output.outputs[0].token_ids) for output in outputs] == [8] * 2


def test_a_request_for_log_probabilities_of_its_prompt_is_refused_and_harms_no_other() -> None:
    with LLM(replay="compact", replay_keep_tokens=KEEP, max_model_len=256) as llm:
        asked = [SamplingParams(max_tokens=2, prompt_logprobs=1), SamplingParams(max_tokens=2)]
        refused, served = llm.generate(prompt_token_ids=prompts((90, 90)), sampling_params=asked, use_tqdm=False)
    assert "prompt_logprobs is 1; with replay other than 'off'" in str(refused.error)
    assert len(served.outputs[0].token_ids) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replay": "compact", "replay_keep_tokens": 69}, "keep_tokens is 69; .* it must be at least 70"),
        ({"replay": "mask"}, "keep_tokens is 0; with window 64 and backtracking 6 it must be at least 70"),
    ],
)
def test_too_few_kept_tokens_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(**options)
