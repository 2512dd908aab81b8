"""Several outputs of one prompt over a small random model: each is what a request of its own would get."""

from typing import Any

import numpy as np
import pytest

from thalweg.engine import LLM, CompletionOutput, SamplingParams
from thalweg.model import small_config, write_random_checkpoint

OPTIONS: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 320, "draft_length": 0}
PROMPTS = [np.random.default_rng(5).integers(3, 500, length).tolist() for length in (5, 131)]
"""The longer one fills one block and a part of a second."""
SAMPLING: dict[str, Any] = {
    "max_tokens": 5,
    "top_p": 0.95,
    "logprobs": 1,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.3,
    "min_tokens": 2,
    "logit_bias": {7: 2.0},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("checkpoint") / "random"
    write_random_checkpoint(path, small_config(num_nextn_predict_layers=1, dspark_block_size=2), seed=4)
    return str(path)


@pytest.fixture(scope="module")
def alone(checkpoint: str) -> dict[tuple[int, int], CompletionOutput]:
    """By prompt and seed."""
    keys = [(prompt, seed) for prompt in range(2) for seed in range(3, 6)]
    with LLM(checkpoint, **OPTIONS) as llm:
        outputs = llm.generate(
            prompt_token_ids=[PROMPTS[prompt] for prompt, _ in keys],
            sampling_params=[SamplingParams(seed=seed, **SAMPLING) for _, seed in keys],
            use_tqdm=False,
        )
    return {key: output.outputs[0] for key, output in zip(keys, outputs, strict=True)}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="sync"),
        pytest.param({"async_scheduling": True, "check_lengths": True}, id="async"),
        pytest.param({"max_num_seqs": 2}, id="short of slots"),
        pytest.param({"num_blocks": 5, "max_model_len": 256}, id="short of blocks"),
        pytest.param({"chunked_prefill": True, "max_num_batched_tokens": 128}, id="chunked"),
    ],
)
def test_output_i_is_that_of_a_request_with_the_seed_plus_i(
    checkpoint: str, alone: dict[tuple[int, int], CompletionOutput], options: dict[str, Any]
) -> None:
    with LLM(checkpoint, **(OPTIONS | options)) as llm:
        outputs = llm.generate(
            prompt_token_ids=PROMPTS, sampling_params=SamplingParams(n=3, seed=3, **SAMPLING), use_tqdm=False
        )
        for pool in (llm.engine.scheduler.blocks, llm.engine.scheduler.state_slots):
            assert pool.num_free == pool.capacity - 1
        num_prompt_tokens = llm.engine.statistics.totals.num_prompt_tokens
    for prompt, output in enumerate(outputs):
        assert output.error is None
        for index, one in enumerate(output.outputs):
            same = alone[prompt, 3 + index]
            assert (one.index, one.text, one.token_ids) == (index, same.text, same.token_ids)
            assert [list(mapping) for mapping in one.logprobs or ()] == [
                list(mapping) for mapping in same.logprobs or ()
            ]
    if not options or "async_scheduling" in options or "chunked_prefill" in options:
        assert num_prompt_tokens == sum(map(len, PROMPTS)), "a prompt was computed more than once"


@pytest.mark.parametrize("verification", ["rejection", "coupled"])
def test_outputs_with_drafts_are_those_of_requests_of_their_own_with_drafts(checkpoint: str, verification: str) -> None:
    options = OPTIONS | {"draft_length": 2, "verification": verification}
    with LLM(checkpoint, **options) as llm:
        together, *others = llm.generate(
            prompt_token_ids=[PROMPTS[1]] * 4,
            sampling_params=[
                SamplingParams(n=3, seed=3, **SAMPLING),
                *(SamplingParams(seed=seed, **SAMPLING) for seed in range(3, 6)),
            ],
            use_tqdm=False,
        )
    assert [one.token_ids for one in together.outputs] == [other.outputs[0].token_ids for other in others]
    assert len({one.token_ids for one in together.outputs}) == 3
