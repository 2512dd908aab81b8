"""In exact quant mode a request computes the same bits however it is batched, chunked, placed or interrupted.

Without drafts: what those keep the same is in `test_determinism_logits.py` and `test_rollback_drafts.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from thalweg.engine import LLM, SamplingParams

# Long enough that the window wraps (64), top-k binds (64 of ratio 1, 128 tokens of ratio 2) and blocks are several.
LENGTHS = (150, 3, 67, 131)
OPTIONS: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 8, "num_blocks": 40, "draft_length": 0}
PARAMS = [
    SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=1, max_tokens=5, ignore_eos=True),
    SamplingParams(temperature=0.7, top_p=0.9, seed=2, max_tokens=7, ignore_eos=True),
    SamplingParams(temperature=1.3, top_k=20, seed=3, max_tokens=6, ignore_eos=True),
]


def make_prompts() -> list[list[int]]:
    choose = random.Random(7)
    return [[0, *(choose.randrange(5, 4096) for _ in range(length - 1))] for length in LENGTHS]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole() -> Iterator[LLM]:
    """Every prompt in one chunk, all in one batch."""
    with LLM(**OPTIONS) as llm:
        yield llm


@pytest.mark.parametrize("size", [37, 128])
def test_any_chunking_equals_the_whole_prefill(whole: LLM, recorder: Any, size: int) -> None:
    expected = recorder.run(whole, make_prompts(), PARAMS)
    with LLM(**OPTIONS, chunked_prefill=True, max_num_batched_tokens=128) as llm:
        cut_prompts(llm, size)
        cut = recorder.run(llm, make_prompts(), PARAMS)
    assert cut.num_steps >= expected.num_steps + (max(LENGTHS) - 1) // size
    cut.assert_equal(expected)


def test_token_by_token_equals_the_whole_prefill(whole: LLM, recorder: Any) -> None:
    prompt = make_prompts()[3]
    expected = recorder.run(whole, [prompt], PARAMS[0])
    with LLM(**OPTIONS, chunked_prefill=True, max_num_batched_tokens=128) as llm:
        cut_prompts(llm, 1)
        single = recorder.run(llm, [prompt], PARAMS[0])
    assert single.num_steps > len(prompt)
    single.assert_equal(expected)


def cut_prompts(llm: LLM, size: int) -> None:
    """Make prefill chunks end at every multiple of `size`, through the checkpoints a store would ask for."""
    add = llm.engine.scheduler.add

    def add_with_checkpoints(token_ids: Any, **options: Any) -> int:
        return add(token_ids, **options, checkpoints=tuple(range(size, len(token_ids), size)))

    llm.engine._fan_out._scheduler = Wrapped(llm.engine.scheduler, add=add_with_checkpoints)  # type: ignore[assignment]


class Wrapped:
    """An object with some methods replaced."""

    def __init__(self, inner: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced, _inner=inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_prompt_computed_by_decode_steps_equals_its_prefill(whole: LLM, recorder: Any) -> None:
    """The tokens a run produced, submitted as a prompt: prefill must reproduce what the decode steps computed."""
    decoded = recorder.run(whole, [make_prompts()[2]], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    sequence = [*make_prompts()[2], *decoded.outputs[0].outputs[0].token_ids]
    prefilled = recorder.run(whole, [sequence[:-1]], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    length = len(sequence) - 1
    assert torch.equal(prefilled.logits[0][length], decoded.logits[0][length])
    for name, values in prefilled.caches[0].items():
        assert torch.equal(values, decoded.caches[0][name]), name


def test_a_request_in_a_batch_equals_the_request_alone(whole: LLM, recorder: Any) -> None:
    together = recorder.run(whole, make_prompts(), PARAMS)
    for index, prompt in enumerate(make_prompts()):
        alone = recorder.run(whole, [prompt], PARAMS[index])
        assert alone.outputs[0].outputs[0].token_ids == together.outputs[index].outputs[0].token_ids
        shared = alone.logits[0].keys() & together.logits[index].keys()
        assert shared == alone.logits[0].keys()
        assert all(torch.equal(alone.logits[0][length], together.logits[index][length]) for length in shared)
        assert all(torch.equal(alone.caches[0][name], together.caches[index][name]) for name in alone.caches[0])


def test_any_order_of_the_requests_gives_the_same_tokens(whole: LLM, recorder: Any) -> None:
    expected = recorder.run(whole, make_prompts(), PARAMS)
    order = [2, 0, 3, 1]
    shuffled = recorder.run(whole, [make_prompts()[i] for i in order], [PARAMS[i] for i in order])
    for place, index in enumerate(order):
        assert shuffled.outputs[place].outputs[0].token_ids == expected.outputs[index].outputs[0].token_ids


def test_any_block_table_permutation_equals_the_identity(whole: LLM, recorder: Any) -> None:
    expected = recorder.run(whole, make_prompts(), PARAMS)
    with LLM(**OPTIONS) as llm:
        shuffle_free_lists(llm)
        recorder.run(llm, make_prompts(), PARAMS).assert_equal(expected)


def shuffle_free_lists(llm: LLM) -> None:
    """Give blocks and slots back in a random order, so that later tables are scattered."""
    for pool in (llm.engine.scheduler.blocks, llm.engine.scheduler.state_slots):
        ids = pool.allocate(pool.num_free)
        random.Random(3).shuffle(ids)
        for one in ids:
            pool.release([one])


def test_stale_bytes_in_blocks_and_slots_are_never_read(whole: LLM, recorder: Any) -> None:
    expected = recorder.run(whole, make_prompts(), PARAMS)
    with LLM(**OPTIONS) as llm:
        pools = llm.engine._runner.device.pools  # type: ignore[attr-defined]
        pools.blocks.fill_(0xFF)  # decodes to NaN in every format
        pools.states.fill_(0xFF)
        recorder.run(llm, make_prompts(), PARAMS).assert_equal(expected)


def test_preempted_and_resumed_equals_undisturbed(whole: LLM, recorder: Any) -> None:
    prompts = [prompt[:120] for prompt in make_prompts()]
    params = [SamplingParams(temperature=0.9, seed=i, max_tokens=32, ignore_eos=True) for i in range(len(prompts))]
    expected = recorder.run(whole, prompts, params)
    with LLM(**{**OPTIONS, "num_blocks": 6, "max_model_len": 200}) as llm:
        tight = recorder.run(llm, prompts, params)
    assert tight.num_preempted > 0
    assert [o.outputs[0].token_ids for o in tight.outputs] == [o.outputs[0].token_ids for o in expected.outputs]
    for mine, theirs in zip(tight.logits, expected.logits, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[length], theirs[length]) for length in mine)
    for mine, theirs in zip(tight.caches, expected.caches, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_two_threads_equal_one(whole: LLM, recorder: Any) -> None:
    expected = recorder.run(whole, make_prompts(), PARAMS)
    torch.set_num_threads(2)
    recorder.run(whole, make_prompts(), PARAMS).assert_equal(expected)
