"""Constrained prompts of one call: no more grammars at a time than the compiler serves in time, and nothing lost."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from engine_testing.bench import EOS
from engine_testing.compiler import FakeCompiler
from engine_testing.matchers import PlainFiller

from thalweg.engine import LLM, RequestOutput, SamplingParams, assembly, structured_parts
from thalweg.interfaces import GrammarSpec, RequestError

OPTIONS: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 256, "structured_workers": 2}
MOST_COMPILING = 4


@pytest.fixture(scope="module")
def compiler() -> FakeCompiler:
    return FakeCompiler(EOS)


@pytest.fixture(scope="module")
def shared(checkpoint: str, compiler: FakeCompiler) -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "compiler_maker", lambda *_, **__: lambda: compiler)
        patch.setattr(assembly, "mask_filler", lambda options: PlainFiller())
        with LLM(checkpoint, **OPTIONS) as llm:
            yield llm


@pytest.fixture
def llm(shared: LLM, compiler: FakeCompiler) -> Iterator[LLM]:
    """Grammar "k" allows token 10 + k, twice, and the end."""
    compiler.grammars = {str(k): lambda tokens, k=k: {10 + k} if len(tokens) < 2 else {EOS} for k in range(30)}
    compiler.is_patient, compiler.on_compile = True, lambda spec: None
    compiler.asked.clear()
    yield shared
    assert not compiler.waiting()
    assert not shared.engine.has_unfinished()
    for pool in (shared.engine.scheduler.blocks, shared.engine.scheduler.state_slots):
        assert pool.num_free == pool.capacity - 1


def constrained(sources: list[str]) -> list[SamplingParams]:
    return [SamplingParams(max_tokens=6, structured=GrammarSpec.regex(source)) for source in sources]


def generate(llm: LLM, sources: list[str]) -> list[RequestOutput]:
    prompts = [[5, 6, 7]] * len(sources)
    return llm.generate(prompt_token_ids=prompts, sampling_params=constrained(sources), use_tqdm=False)


def stepping(llm: LLM, patch: pytest.MonkeyPatch, before: Any) -> None:
    """Call this before each step."""
    step = llm.engine.step

    def stepped() -> list[RequestOutput]:
        before()
        return step()

    patch.setattr(llm.engine, "step", stepped)


def test_no_more_grammars_are_compiled_at_a_time_than_workers_can_serve(
    llm: LLM, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[int] = []

    def finish_one() -> None:
        waiting.append(len(compiler.waiting()))
        for name, _, future in compiler.asked:
            if not future.done():
                compiler.finish(name)
                break

    stepping(llm, monkeypatch, finish_one)
    outputs = generate(llm, [str(k) for k in range(12)])
    assert [output.outputs[0].token_ids for output in outputs] == [(10 + k, 10 + k, EOS) for k in range(12)]
    assert max(waiting) == MOST_COMPILING
    assert waiting[:8] == [MOST_COMPILING] * 8


def test_grammars_that_are_there_hold_nothing_up(
    llm: LLM, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.is_patient = False
    asked: list[int] = []
    stepping(llm, monkeypatch, lambda: asked.append(len(compiler.asked)))
    outputs = generate(llm, ["1"] * 9)
    assert asked[0] == 9
    assert {output.outputs[0].finish_reason for output in outputs} == {"stop"}


def test_refused_and_failed_grammars_are_outputs_with_a_reason(llm: LLM, compiler: FakeCompiler) -> None:
    def refuse(spec: GrammarSpec) -> None:
        if spec.source == "bad":
            raise RequestError("nested 65 deep")

    compiler.is_patient, compiler.on_compile = False, refuse
    outputs = generate(llm, ["1", "bad", "unknown", "bad", "2"])
    assert [(output.outputs[0].finish_reason, output.error) for output in outputs] == [
        ("stop", None),
        ("error", "nested 65 deep"),
        ("structured_output_failed", "no rule 'unknown'"),
        ("error", "nested 65 deep"),
        ("stop", None),
    ]


def test_an_interrupt_cancels_what_is_compiled_and_adds_nothing_more(
    llm: LLM, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        stepping(llm, patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            generate(llm, [str(k) for k in range(10)])
    assert [future.cancelled() for _, _, future in compiler.asked] == [True] * MOST_COMPILING
    compiler.is_patient = False
    assert generate(llm, ["3"])[0].outputs[0].token_ids == (13, 13, EOS)


def test_prompts_that_a_failed_engine_never_saw_have_its_reason(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = FakeCompiler(EOS)
    monkeypatch.setattr(assembly, "compiler_maker", lambda *_, **__: lambda: compiler)
    monkeypatch.setattr(assembly, "mask_filler", lambda options: PlainFiller())
    with LLM(checkpoint, **OPTIONS) as llm:

        def fail() -> None:
            raise RuntimeError("device lost")

        monkeypatch.setattr(llm.engine, "_pump", fail)
        outputs = generate(llm, [str(k) for k in range(10)])
        assert len(compiler.asked) == MOST_COMPILING
        assert {output.error for output in outputs} == {"the engine failed: RuntimeError: device lost"}
        assert {output.outputs[0].finish_reason for output in outputs} == {"error"}
    assert compiler.is_closed


def test_the_package_that_serves_grammars_is_not_loaded_before_it_is_needed(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structured_parts, "is_installed", lambda: True)
    monkeypatch.setitem(sys.modules, "thalweg.structured", None)
    monkeypatch.setattr(assembly, "compiler_maker", structured_parts.compiler_maker)
    monkeypatch.setattr(assembly, "mask_filler", structured_parts.mask_filler)
    with LLM(checkpoint, **OPTIONS) as llm:
        plain = llm.generate("x", SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)
        assert len(plain[0].outputs[0].token_ids) == 2
        with pytest.raises(ImportError, match=r"thalweg\.structured"):
            generate(llm, ["1"])
        assert not llm.engine.has_unfinished()


def test_without_the_package_a_grammar_is_refused_and_the_rest_is_served(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structured_parts, "is_installed", lambda: False)
    monkeypatch.setattr(assembly, "compiler_maker", structured_parts.compiler_maker)
    monkeypatch.setattr(assembly, "mask_filler", structured_parts.mask_filler)
    with LLM(checkpoint, **OPTIONS) as llm:
        prompts, options = [[5, 6]] * 2, [*constrained(["1"]), SamplingParams(max_tokens=2, ignore_eos=True)]
        refused, served = llm.generate(prompt_token_ids=prompts, sampling_params=options, use_tqdm=False)
    assert "pip install 'thalweg-engine[structured]'" in str(refused.error)
    assert (len(served.outputs[0].token_ids), served.error) == (2, None)
