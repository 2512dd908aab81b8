"""Whole generations of a small random model: what must not change the tokens, and what every caller may do wrong."""

import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thalweg.engine import LLM, CacheConfig, EngineConfig, RequestOutput, SamplingParams, SchedulerConfig
from thalweg.engine.model_device import ModelDevice
from thalweg.interfaces import BackendUnavailableError, CapacityError, CheckpointError, ConfigError

PROMPT_LENGTHS = (1, 3, 17, 40, 130, 7)
OPTIONS: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 320}


@pytest.fixture(scope="module")
def llm(checkpoint: str) -> Iterator[LLM]:
    with LLM(checkpoint, **OPTIONS) as llm:
        yield llm
        assert_nothing_held(llm)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = np.random.default_rng(3)
    return [generator.integers(3, 500, length).tolist() for length in PROMPT_LENGTHS]


@pytest.fixture(scope="module")
def params() -> list[SamplingParams]:
    sampled = [
        SamplingParams(seed=seed, top_p=top_p, top_k=top_k, max_tokens=9, ignore_eos=True)
        for seed, top_p, top_k in [(1, 1.0, -1), (2, 0.9, -1), (3, 1.0, 40), (4, 0.95, 100), (2**63, 1.0, -1)]
    ]
    return [*sampled, SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)]


@pytest.fixture(scope="module")
def expected(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[tuple[int, ...]]:
    return tokens(llm.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False))


def tokens(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    assert all(output.finished and output.error is None for output in outputs)
    return [output.outputs[0].token_ids for output in outputs]


def assert_nothing_held(llm: LLM) -> None:
    for pool in (llm.engine.scheduler.blocks, llm.engine.scheduler.state_slots):
        assert pool.num_free == pool.capacity - 1


def test_equal_seeds_give_equal_tokens_alone_and_in_any_batch(
    llm: LLM, prompts: list[list[int]], params: list[SamplingParams], expected: list[tuple[int, ...]]
) -> None:
    alone = [
        tokens(llm.generate(prompt_token_ids=[prompt], sampling_params=one, use_tqdm=False))[0]
        for prompt, one in zip(prompts, params, strict=True)
    ]
    assert alone == expected
    reversed_order = tokens(llm.generate(prompt_token_ids=prompts[::-1], sampling_params=params[::-1], use_tqdm=False))
    assert reversed_order[::-1] == expected
    assert len(set(expected)) == len(expected)


def test_overlapping_steps_give_the_tokens_of_steps_in_place(
    checkpoint: str, prompts: list[list[int]], params: list[SamplingParams], expected: list[tuple[int, ...]]
) -> None:
    with LLM(checkpoint, **OPTIONS, async_scheduling=True, check_lengths=True) as llm:
        assert llm.engine.is_async
        assert tokens(llm.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False)) == expected
        assert not llm.engine.has_unfinished()
        assert_nothing_held(llm)


def test_an_interrupt_with_a_step_in_flight_leaves_nothing_of_the_call(
    checkpoint: str, prompts: list[list[int]], params: list[SamplingParams], expected: list[tuple[int, ...]]
) -> None:
    with LLM(checkpoint, **OPTIONS, async_scheduling=True, check_lengths=True) as llm:
        step, calls = llm.engine.step, itertools.count()

        def interrupted() -> list[RequestOutput]:
            if next(calls) == 4:
                raise KeyboardInterrupt
            return step()

        llm.engine.add_request("mine", prompts[2], params[2])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(llm.engine, "step", interrupted)
            with pytest.raises(KeyboardInterrupt):
                llm.generate(prompt_token_ids=prompts[:2], sampling_params=params[:2], use_tqdm=False)
        outputs = {}
        while llm.engine.has_unfinished():
            outputs |= {output.request_id: output for output in llm.engine.step()}
        assert {name: output.outputs[0].token_ids for name, output in outputs.items()} == {"mine": expected[2]}
        assert_nothing_held(llm)


def test_chunked_prefill_gives_the_tokens_of_whole_prefill(
    checkpoint: str, prompts: list[list[int]], params: list[SamplingParams], expected: list[tuple[int, ...]]
) -> None:
    long_prompt = (prompts[4] * 3)[:300]
    with LLM(checkpoint, **OPTIONS, chunked_prefill=True, max_num_batched_tokens=128) as chunked:
        got = tokens(chunked.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False))
        in_chunks = chunked.generate(prompt_token_ids=long_prompt, sampling_params=params[0], use_tqdm=False)
        assert chunked.engine.statistics.totals.num_prefill_steps >= 4
        assert_nothing_held(chunked)
    assert got == expected
    with LLM(checkpoint, **OPTIONS) as whole:
        at_once = whole.generate(prompt_token_ids=long_prompt, sampling_params=params[0], use_tqdm=False)
    assert tokens(in_chunks) == tokens(at_once)


def test_preempted_and_resumed_gives_the_tokens_of_undisturbed(checkpoint: str) -> None:
    generator = np.random.default_rng(9)
    prompts = [generator.integers(3, 500, length).tolist() for length in (124, 122, 126, 123)]
    params = [SamplingParams(seed=seed, max_tokens=8, ignore_eos=True) for seed in range(4)]
    results, preemptions = [], []
    for num_blocks in (40, 6):
        with LLM(checkpoint, **OPTIONS, num_blocks=num_blocks) as llm:
            outputs = llm.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False)
            assert_nothing_held(llm)
        results.append(tokens(outputs))
        preemptions.append(sum(output.metrics.num_preemptions for output in outputs))
    assert results[0] == results[1]
    assert preemptions[0] == 0
    assert preemptions[1] > 0


def test_memory_that_nobody_holds_is_never_read(
    checkpoint: str, prompts: list[list[int]], params: list[SamplingParams], expected: list[tuple[int, ...]]
) -> None:
    with LLM(checkpoint, **OPTIONS) as llm:
        engine = llm.engine
        device = engine._runner.device  # type: ignore[attr-defined]
        assert isinstance(device, ModelDevice)
        finals = {}
        for index, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
            engine.add_request(str(index), prompt, one)
        while engine.has_unfinished():
            state = engine.scheduler.debug_state()
            device.pools.blocks[list(state["free_blocks"])] = 0xFF
            device.pools.states[list(state["free_state_slots"])] = 0xFF
            finals |= {output.request_id: output for output in engine.step() if output.finished}
    assert tokens([finals[str(index)] for index in range(len(prompts))]) == expected


@pytest.mark.parametrize(("mode", "arithmetic"), [("plain", "exact"), ("plain", "float32"), ("quant", "float32")])
def test_every_mode_is_independent_of_the_batch(
    checkpoint: str, prompts: list[list[int]], params: list[SamplingParams], mode: str, arithmetic: str
) -> None:
    with LLM(checkpoint, **OPTIONS, mode=mode, arithmetic=arithmetic) as llm:
        together = tokens(llm.generate(prompt_token_ids=prompts[:4], sampling_params=params[:4], use_tqdm=False))
        alone = tokens(llm.generate(prompt_token_ids=prompts[2], sampling_params=params[2], use_tqdm=False))
    assert alone[0] == together[2]


def test_seeds_that_nobody_gave_come_from_the_engine_seed(checkpoint: str) -> None:
    def run(seed: int) -> list[tuple[int, ...]]:
        with LLM(checkpoint, **OPTIONS, seed=seed) as llm:
            params = SamplingParams(max_tokens=6, ignore_eos=True)
            return tokens(llm.generate(prompt_token_ids=[[5, 6], [5, 6]], sampling_params=params, use_tqdm=False))

    first = run(1)
    assert first == run(1)
    assert first != run(2)
    assert first[0] != first[1]


def test_min_tokens_keeps_ending_tokens_away(llm: LLM) -> None:
    ending = tuple(range(1, 400))
    params = SamplingParams(seed=3, max_tokens=12, min_tokens=5, stop_token_ids=ending)
    output = llm.generate(prompt_token_ids=[7, 8, 9], sampling_params=params, use_tqdm=False)[0].outputs[0]
    assert not set(output.token_ids[:5]) & set(ending)
    assert len(output.token_ids) > 5
    assert output.stop_reason == output.token_ids[-1]


def test_outputs_come_in_input_order_with_the_refused_ones(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=2)
    outputs = llm.generate(["one", "", "three", "x" * 2000], params, use_tqdm=False)
    assert [output.prompt for output in outputs] == ["one", "", "three", "x" * 2000]
    assert [output.finished for output in outputs] == [True] * 4
    assert [output.error is None for output in outputs] == [True, False, True, False]
    assert "the prompt is empty" in str(outputs[1].error)
    assert "max_model_len is 320" in str(outputs[3].error)
    assert [output.outputs[0].finish_reason for output in outputs] == [
        "length",
        "error",
        "length",
        "prompt_length_exceeded",
    ]
    assert len({output.request_id for output in outputs}) == 4


def test_prompts_may_be_texts_ids_or_both(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=2)
    ids = llm.get_tokenizer().encode("hello")

    def run(*args: Any, **kwargs: Any) -> list[RequestOutput]:
        return llm.generate(*args, sampling_params=params, use_tqdm=False, **kwargs)

    text = run("hello")[0]
    assert text.prompt_token_ids == tuple(ids)
    for outputs in (
        run(["hello"]),
        run(prompt_token_ids=ids),
        run(prompt_token_ids=[ids]),
        run(prompt_token_ids=np.array(ids)),
        run(prompt_token_ids=torch.tensor(ids)),
        run(prompt_token_ids=torch.tensor([ids])),
        run(prompt_token_ids=[torch.tensor(ids)]),
        run(prompt_token_ids=[np.array(ids)]),
        run("shown", prompt_token_ids=ids),
    ):
        assert outputs[0].outputs == text.outputs
    assert run("shown", prompt_token_ids=ids)[0].prompt == "shown"
    assert run([]) == []


def test_calls_that_contradict_themselves_are_refused(llm: LLM) -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: llm.generate(), "prompts and prompt_token_ids are both None"),
        (lambda: llm.generate(["a", "b"], prompt_token_ids=[[1]]), "there are 2 prompts and 1 prompt_token_ids"),
        (lambda: llm.generate(["a", "b"], [SamplingParams()]), "there are 1 sampling_params for 2 prompts"),
        (lambda: llm.generate("a", {"temprature": 1}), "unknown sampling option 'temprature'"),
        (lambda: llm.generate("a", [{"max_tokens": 0}]), "max_tokens is 0"),
        (lambda: llm.generate("a", 3), "sampling_params is int; it must be one item or a list"),  # type: ignore[arg-type]
        (lambda: llm.generate(5), "prompts is int; it must be"),  # type: ignore[arg-type]
        (lambda: llm.generate(prompt_token_ids="abc"), "prompt_token_ids is str; it must be"),  # type: ignore[arg-type]
    ]
    for call, message in cases:
        with pytest.raises(ConfigError, match=message):
            call()
    assert not llm.engine.has_unfinished()


def test_sampling_params_may_be_mappings_one_per_prompt(llm: LLM) -> None:
    outputs = llm.generate(["a", "b"], [{"max_tokens": 1}, {"max_tokens": 3, "ignore_eos": True}], use_tqdm=False)
    assert [output.metrics.num_output_tokens for output in outputs] == [1, 3]


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (3, ConfigError, "sampling_params is int"),
        ({"temprature": 1}, ConfigError, "unknown sampling option"),
        ({"seed": 1.5}, TypeError, "seed is 1.5"),
    ],
)
def test_bad_parameters_of_one_prompt_are_refused_before_any_request_is_queued(
    llm: LLM, bad: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        llm.generate(["a", "b"], [SamplingParams(max_tokens=2), bad], use_tqdm=False)
    assert not llm.engine.has_unfinished()
    assert_nothing_held(llm)


def test_an_error_in_the_middle_of_generate_leaves_nothing_behind(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    good = SamplingParams(max_tokens=2)
    add_request, calls = llm.engine.add_request, []

    def failing(*args: Any, **kwargs: Any) -> None:
        calls.append(args)
        if len(calls) == 3:
            raise RuntimeError("out of luck")
        add_request(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine, "add_request", failing)
        with pytest.raises(RuntimeError, match="out of luck"):
            llm.generate(["a", "b", "c"], good, use_tqdm=False)
    assert llm.engine.flush() == []
    before = llm.engine.statistics.totals.num_output_tokens
    assert llm.generate("a", good, use_tqdm=False)[0].error is None
    assert llm.engine.statistics.totals.num_output_tokens == before + 2
    assert not llm.engine.has_unfinished()
    assert_nothing_held(llm)


def test_a_prompt_of_the_wrong_kind_is_refused_alone(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=2)
    by_ids = llm.generate(prompt_token_ids=[[5], "abc", None, [[5]]], sampling_params=params, use_tqdm=False)  # type: ignore[list-item]
    assert by_ids[0].error is None
    assert "holds the text 'abc'; texts go into prompts" in str(by_ids[1].error)
    assert "must be a text" in str(by_ids[2].error)
    assert "prompt token 0 is [5]; token ids must be integers" in str(by_ids[3].error)
    by_text = llm.generate(["x", [5, 6], None], params, use_tqdm=False)  # type: ignore[list-item]
    assert by_text[0].error is None
    assert [output.prompt for output in by_text] == ["x", None, None]
    assert all("token ids go into prompt_token_ids" in str(output.error) for output in by_text[1:])


def test_parameters_beyond_float32_are_served_and_hurt_nobody(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=4)
    sharp = SamplingParams(top_p=1e-300, seed=1, max_tokens=4)
    flat = [SamplingParams(temperature=hot, seed=1, max_tokens=4) for hot in (10**400, 1e300, 3e38)]
    outputs = llm.generate(["hello"] * 5, [greedy, sharp, *flat], use_tqdm=False)
    assert tokens(outputs)[0] == tokens(outputs)[1]
    assert len(set(tokens(outputs)[2:])) == 1


def test_requests_added_to_the_engine_keep_their_outputs_when_generate_runs(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3)
    expected = llm.generate(["one", "two"], params, use_tqdm=False)
    llm.engine.add_request("mine", "one", params)
    assert llm.generate("two", params, use_tqdm=False)[0].outputs == expected[1].outputs
    llm.engine.add_request("also mine", "two", params)
    assert [output.error is None for output in llm.generate([""], use_tqdm=False)] == [False]
    finals = {}
    while llm.engine.has_unfinished():
        finals |= {output.request_id: output for output in llm.engine.step() if output.finished}
    assert [finals[name].outputs for name in ("mine", "also mine")] == [output.outputs for output in expected]


def test_the_progress_bar_counts_requests(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", ""], SamplingParams(max_tokens=1))
    assert "2/2" in capsys.readouterr().err


def test_options_reach_the_engine_from_config_and_overrides(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THALWEG_MAX_NUM_SEQS", "3")
    config = EngineConfig(
        model=checkpoint, scheduler=SchedulerConfig(max_model_len=128), cache=CacheConfig(num_blocks=9)
    )
    with LLM(config=config, max_num_seqs=2) as llm:
        assert llm.engine.scheduler.blocks.capacity == 9
        assert llm.engine.scheduler.state_slots.capacity == 3
    with LLM(Path(checkpoint), num_blocks=9, max_model_len=128) as llm:
        assert llm.engine.scheduler.state_slots.capacity == 4
        assert not llm.engine.is_async
        assert llm.engine._runner._backend.guard.enabled  # type: ignore[attr-defined]
    with LLM(checkpoint, num_blocks=9, max_model_len=128, sync_guard=False, async_scheduling=True) as llm:
        assert llm.engine.is_async
        assert not llm.engine._runner._backend.guard.enabled  # type: ignore[attr-defined]


def test_a_bad_set_up_names_what_is_wrong(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="unknown option 'max_modl_len'; did you mean max_model_len"):
        LLM(checkpoint, max_modl_len=5)
    with pytest.raises(ConfigError, match="max_model_len is 100000; the checkpoint has max_position_embeddings"):
        LLM(checkpoint, max_model_len=100000)
    with pytest.raises(CapacityError, match="sequences of up to 4000 tokens need"):
        LLM(checkpoint, max_model_len=4000, num_blocks=20)
    with pytest.raises(BackendUnavailableError, match="no backend 'sm100' is installed; installed: cpu, sm90"):
        LLM(checkpoint, backend="sm100")
    with pytest.raises(ConfigError, match="max_num_batched_tokens is 100; it must be at least"):
        LLM(checkpoint, max_num_batched_tokens=100)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        LLM(str(tmp_path))
    (tmp_path / "config.json").write_bytes((Path(checkpoint) / "config.json").read_bytes())
    with pytest.raises(ConfigError, match=r"tokenizer\.json does not exist"):
        LLM(str(tmp_path))

    def absent(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ConfigError, match="thalweg tiny DIR"):
        LLM()
