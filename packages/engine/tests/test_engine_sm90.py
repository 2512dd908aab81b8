"""The engine on a Hopper GPU: what it says, against the CPU and itself; what it allocates, and what it refuses."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_testing.on_device import LogitWatch, TextDrafter, on_sm90, prompts, row_by_row, write_drafting_checkpoint
from engine_testing.plans import make_plan

from thalweg.engine import LLM, EngineConfig, SamplingParams, build_engine
from thalweg.engine.decode_tensors import tensors_of
from thalweg.engine.model_device import ModelDevice
from thalweg.interfaces import CapacityError, ConfigError, GrammarSpec, StepKind
from thalweg.kernels.sm90.library import num_compiled

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

SIZES: dict[str, Any] = {
    "max_num_seqs": 16,
    "max_model_len": 256,
    "max_num_batched_tokens": 1024,
    "graph_interval": 32,
    "num_blocks": 48,
}
NUM_PROMPTS, NUM_TOKENS = 200, 4
VOCAB_SIZE = 4096


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("drafting") / "checkpoint"
    write_drafting_checkpoint(path)
    return str(path)


def said(outputs: list[Any]) -> list[tuple[int, ...]]:
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [output.outputs[0].token_ids for output in outputs]


def generate(wanted: list[list[int]], params: Any, **options: Any) -> list[tuple[int, ...]]:
    with LLM(**(SIZES | options)) as llm:
        return said(llm.generate(prompt_token_ids=wanted, sampling_params=params, use_tqdm=False))


def watched(monkeypatch: pytest.MonkeyPatch, wanted: list[list[int]], params: Any, **options: Any) -> tuple[Any, Any]:
    """Tokens, and the logits behind each of them."""
    watch = LogitWatch()
    with monkeypatch.context() as patch:
        patch.setattr(ModelDevice, "sample", lambda *given: watch.sample(*given))
        texts = generate(wanted, params, sync_guard=False, async_scheduling=False, draft_length=0, **options)
    return texts, watch.rows


def test_the_gpu_is_as_near_to_exact_arithmetic_as_float32_on_the_cpu_is(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """Teacher-forced on the tokens of exact arithmetic, steps differ where other sums round another way.

    Rounding to bfloat16 and to MXFP8 makes steps of what is a last bit in a sum, in every layer: no arithmetic but the
    exact one gives its logits, so the CPU's own float32 is the measure. The GPU rounds probabilities of attention to
    bfloat16, too, and may be twice as far.
    """
    wanted = prompts(NUM_PROMPTS, VOCAB_SIZE, longest=40)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    texts, exact = watched(monkeypatch, wanted, params, arithmetic="exact")
    forced = [replace(params, forced_token_ids=text) for text in texts]
    again, here = watched(monkeypatch, wanted, forced, arithmetic="float32")
    said_there, there = watched(monkeypatch, wanted, forced, **on_sm90())
    assert again == said_there == texts
    assert len(exact) == NUM_PROMPTS * NUM_TOKENS
    assert exact.keys() == here.keys() <= there.keys()
    on_cpu, on_gpu = Distance.of(exact, here), Distance.of(exact, there)
    record_property("float32 on the CPU", on_cpu)
    record_property("on the GPU", on_gpu)
    assert on_gpu.mean_error < 2 * on_cpu.mean_error
    assert on_gpu.num_differing < 2 * on_cpu.num_differing + len(exact) // 100
    assert on_gpu.largest_gap < 2 * on_cpu.largest_error


@dataclass(frozen=True)
class Distance:
    """How far logits are from those of exact arithmetic, at the tokens that are the likeliest there."""

    mean_error: float
    largest_error: float
    num_differing: int
    """Steps with another likeliest token."""
    largest_gap: float
    """Between the two likeliest tokens of such a step."""

    @staticmethod
    def of(exact: dict[Any, torch.Tensor], other: dict[Any, torch.Tensor]) -> Distance:
        errors, gaps = [], [0.0]
        for key, logits in exact.items():
            (first, second), best = logits.topk(2).values.tolist(), int(logits.argmax())
            errors.append(abs(float(other[key][best]) - first))
            if int(other[key].argmax()) != best:
                gaps.append(first - second)
        return Distance(float(np.mean(errors)), max(errors), len(gaps) - 1, max(gaps))


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_greedy_text_is_the_same_with_drafts_and_without(graphs: bool) -> None:
    wanted = prompts(32, VOCAB_SIZE, seed=1)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    plain = generate(wanted, params, **row_by_row(graphs=graphs, draft_length=0))
    drafter = TextDrafter([[*prompt, *text] for prompt, text in zip(wanted, plain, strict=True)])
    config = EngineConfig.build(environ={}, **(SIZES | row_by_row(graphs=graphs)))
    drafted = [()] * len(wanted)
    with build_engine(config, drafter=drafter) as engine:
        for number, prompt in enumerate(wanted):
            engine.add_request(str(number), prompt, params)
        while engine.has_unfinished():
            for output in engine.step():
                assert output.error is None
                drafted[int(output.request_id)] = output.outputs[0].token_ids
        totals = engine.statistics.totals
    assert drafted == plain
    assert totals.num_output_tokens == 24 * len(wanted)
    assert totals.num_decode_steps < 36, "of the 46 that two turns take without drafts"


def test_steps_that_overlap_say_what_steps_in_place_say() -> None:
    wanted = prompts(40, VOCAB_SIZE, seed=2)
    params = [
        SamplingParams(temperature=0.8 * (number % 2), seed=number, max_tokens=4 + number % 13, ignore_eos=True)
        for number in range(40)
    ]
    options = row_by_row()
    overlapping = generate(wanted, params, **options)
    assert generate(wanted, params, **options, async_scheduling=False) == overlapping


SPECS = (
    GrammarSpec.regex("[0-9]{3,9}"),
    GrammarSpec.choice(["foo", "foobar", "bär"]),
    GrammarSpec.json({"type": "array", "items": {"enum": [1, 2, "x"]}, "minItems": 1, "maxItems": 5}),
)


def follows(spec: GrammarSpec, text: str) -> bool:
    """Whether it is a whole text of one of those grammars."""
    if spec is SPECS[0]:
        return re.fullmatch("[0-9]{3,9}", text) is not None
    return text in ("foo", "foobar", "bär") if spec is SPECS[1] else set(json.loads(text)) <= {1, 2, "x"}


@pytest.mark.parametrize("overlaps", [False, True], ids=["in place", "overlapping"])
def test_constrained_text_follows_its_grammar_and_is_the_same_with_drafts_and_without(
    drafting: str, overlaps: bool
) -> None:
    pytest.importorskip("xgrammar")
    wanted = prompts(24, VOCAB_SIZE, seed=6)
    params = [
        SamplingParams(temperature=number // 3 % 2, seed=number, max_tokens=30, structured=SPECS[number % 3])
        for number in range(24)
    ]
    texts = []
    for changes in ({"draft_length": 0}, {}):
        options = SIZES | row_by_row(async_scheduling=overlaps, **changes)
        with LLM(drafting, **options) as llm:
            outputs = llm.generate(prompt_token_ids=wanted, sampling_params=params, use_tqdm=False)
        texts.append(said(outputs))
        ends = [output.outputs[0] for output in outputs]
        assert sum(end.finish_reason == "stop" for end in ends) > 12
        for end, each in zip(ends, params, strict=True):
            assert end.finish_reason == "length" or follows(each.structured, end.text), end.text
    assert texts[0] == texts[1]


def decode_plan(lengths: list[int], look_back: int, draft_length: int, seed: int) -> Any:
    """Sequences of random tokens, lengths and blocks."""
    random = np.random.default_rng(seed)
    sequences = []
    for number, length in enumerate(lengths):
        tokens = random.integers(5, VOCAB_SIZE, random.integers(1, 250)).tolist()
        sequences.append(
            {
                "tokens": tokens,
                "q": length,
                "k": len(tokens) - 1 + length,
                "blocks": [1 + 2 * number, 2 + 2 * number],
                "state": 1 + number,
                "drafts": random.integers(5, VOCAB_SIZE, draft_length).tolist(),
            }
        )
    return make_plan(StepKind.DECODE, sequences, look_back, draft_length)


def test_every_graph_computes_what_its_step_computes_without_one(drafting: str) -> None:
    count = 4
    options = on_sm90(max_num_seqs=count, max_model_len=256, max_num_batched_tokens=512, num_blocks=12)
    with LLM(drafting, **options) as llm:
        runner: Any = llm.engine._runner
        device, inputs = runner.device, runner._inputs
        draft_length, look_back = device.drafter.draft_length, device.model.config.engram_max_ngram_size
        params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
        llm.generate(prompt_token_ids=prompts(count, VOCAB_SIZE, longest=90), sampling_params=params, use_tqdm=False)
        sizes = device._graphs.sizes
        assert sizes == (1, 2, 4, 8, 16, 24)
        tried = set()
        for rows in range(1, sizes[-1] + 1):
            used = -(-rows // (1 + draft_length))
            lengths = [len(part) for part in np.array_split(np.arange(rows), used)]
            built = inputs.build(decode_plan(lengths, look_back, draft_length, seed=rows))
            tried.add((built.num_rows, built.num_padding))
            with torch.inference_mode():
                prepared = device.prepare(built, None, redistribute=False)
                replayed = [rows.clone() for rows in device._graphs.run(tensors_of(prepared.batch, prepared.metadata))]
                eager = device._pass(prepared.batch, prepared.metadata)
            for one, other in zip(replayed, eager, strict=True):
                assert one.shape == other.shape
                assert bool(one.float().isfinite().all())
                assert torch.equal(one, other), f"{rows} rows"
        assert {size for size, padding in tried if not padding} == set(sizes)
        assert {size for size, padding in tried if padding} == {4, 8, 16, 24}


def test_drafts_of_graphs_are_those_without(drafting: str) -> None:
    wanted = prompts(20, VOCAB_SIZE, seed=3)
    params = SamplingParams(temperature=1, seed=5, max_tokens=20, ignore_eos=True)
    both = [generate(wanted, params, model=drafting, **row_by_row(graphs=graphs)) for graphs in (True, False)]
    assert both[0] == both[1]


def test_nothing_is_built_or_allocated_once_requests_come(drafting: str) -> None:
    every_kind = [
        SamplingParams(temperature=0, max_tokens=9, ignore_eos=True),
        SamplingParams(temperature=1, top_p=0.9, top_k=20, min_p=0.01, seed=1, max_tokens=12, logprobs=3),
        SamplingParams(temperature=0.5, seed=2, max_tokens=7, repetition_penalty=1.2, presence_penalty=0.3),
        SamplingParams(temperature=0, max_tokens=5, logit_bias={7: 2.0}, min_tokens=3, prompt_logprobs=2),
    ]
    wanted = prompts(32, VOCAB_SIZE, seed=4)
    params = [every_kind[number % 4] for number in range(32)]
    with LLM(drafting, **(SIZES | on_sm90(num_blocks=None))) as llm:
        before = num_compiled(), torch.cuda.memory_stats()["num_device_alloc"]
        first = said(llm.generate(prompt_token_ids=wanted, sampling_params=params, use_tqdm=False))
        after = num_compiled(), torch.cuda.memory_stats()["num_device_alloc"]
        assert after == before
        assert said(llm.generate(prompt_token_ids=wanted, sampling_params=params, use_tqdm=False)) == first
        assert llm.engine._runner._backend.guard.enabled  # type: ignore[attr-defined]


def test_close_gives_the_memory_back(drafting: str) -> None:
    left = []
    for _ in range(3):
        with LLM(drafting, **(SIZES | on_sm90())) as llm:
            llm.generate(prompt_token_ids=[[0, 7, 8]], sampling_params=SamplingParams(max_tokens=2), use_tqdm=False)
            during = torch.cuda.memory_allocated()
        left.append(torch.cuda.memory_allocated())
        assert during - left[-1] > 1 << 24
    assert left[2] == left[1], "what libraries keep comes with the first engine alone"
    assert left[2] < 1 << 26


def test_verify_lengths_vary_by_a_curve_of_graphs(drafting: str) -> None:
    wanted = prompts(12, VOCAB_SIZE, seed=5)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    with LLM(drafting, **row_by_row(max_num_seqs=4, max_model_len=256, num_blocks=12, variable_length=True)) as llm:
        curve = llm.engine._step_times
        assert curve is not None
        assert [size for size, _ in curve] == [1, 2, 4, 8, 16, 24]
        assert all(0.01 < milliseconds < 1000 for _, milliseconds in curve)
        varied = said(llm.generate(prompt_token_ids=wanted, sampling_params=params, use_tqdm=False))
    assert varied == generate(wanted, params, model=drafting, **row_by_row(draft_length=0))


def test_sizes_that_no_kernel_serves_are_named_at_the_start(tmp_path: Path) -> None:
    write_drafting_checkpoint(tmp_path / "odd", index_n_heads=4)
    with pytest.raises(ConfigError, match="q has 4 index heads; a positive multiple of 8 is served"):
        LLM(tmp_path / "odd", **(SIZES | on_sm90()))


def test_a_device_that_is_too_full_is_refused_with_what_is_needed(hopper: torch.device) -> None:
    with pytest.raises(ConfigError, match="arithmetic is 'exact' with backend 'sm90'; there 'native' is accepted"):
        LLM(backend="sm90", arithmetic="exact")
    with pytest.raises(CapacityError, match=r"num_blocks is 100000000; with .* the cache takes"):
        LLM(**(SIZES | on_sm90(num_blocks=100_000_000)))
    with pytest.raises(CapacityError, match="num_blocks is 0; no memory is left for the cache"):
        LLM(**(SIZES | on_sm90(num_blocks=None, memory_fraction=1e-3)))
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-4)
    try:
        with pytest.raises(CapacityError, match=r"the weights of .* do not fit on cuda:0, which has \d+ bytes"):
            LLM(**(SIZES | on_sm90()))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
