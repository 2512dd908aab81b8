"""Constrained requests of the trained checkpoint, biased so that what it says comes to an end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

from structured_testing.compiler import LocalCompiler
from structured_testing.drafter import GrammarDrafter
from thalweg.engine import EngineConfig, LLMEngine, SamplingParams, build_engine
from thalweg.engine.checkpoint import checkpoint_directory
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import RequestOutput
from thalweg.model import Model, ModelConfig
from thalweg.structured import Vocabulary

PROMPT = "data = "
DRAFTS = 5
LENGTH = 160
END_BIAS, CLOSING_BIAS, CLOSING_FIRST_BIAS, SPACE_BIAS, FOREIGN_BIAS = 11.0, 8.0, 4.0, -6.0, -8.0


@cache
def facts() -> ModelConfig:
    return ModelConfig.from_file(checkpoint_directory(EngineConfig()))


@cache
def model(arithmetic: str) -> Model:
    """Loaded once for all engines."""
    return Model.load(checkpoint_directory(EngineConfig()), mode="plain", arithmetic=arithmetic)


@cache
def compiler() -> LocalCompiler:
    """Of the checkpoint's vocabulary."""
    config = facts()
    tokenizer = Tokenizer.from_file(
        checkpoint_directory(EngineConfig()),
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        vocab_size=config.vocab_size,
    )
    return LocalCompiler(
        Vocabulary.from_tokenizer(
            tokenizer.library_tokenizer, vocab_size=config.vocab_size, end_token_id=config.eos_token_id
        )
    )


@cache
def ending_bias() -> Mapping[int, float]:
    """For the end and whatever closes something, against white space, escapes and letters that are not ASCII."""
    vocabulary = compiler().vocabulary
    biases = {vocabulary.end_token_id: END_BIAS}
    for token, text in enumerate(vocabulary.tokens):
        if token in vocabulary.added_ids:
            continue
        if not text.isascii():
            biases[token] = FOREIGN_BIAS
        elif not text.strip() or b"\\" in text:
            biases[token] = SPACE_BIAS
        elif not text.strip(b'"}])'):
            biases[token] = CLOSING_BIAS
        elif text[:1] in b'"}])':
            biases[token] = CLOSING_FIRST_BIAS
    return biases


def biased(params: SamplingParams) -> SamplingParams:
    """The same, with an output that is likely to come to an end."""
    return replace(params, logit_bias=ending_bias())


def engine(
    *, arithmetic: str, drafter: GrammarDrafter | None = None, has_processes: bool = False, **options: Any
) -> LLMEngine:
    """An engine of the checkpoint; without a drafter it does not draft, although the checkpoint could.

    has_processes: grammars are compiled as engines do, else here and kept for all tests. options: of the engine.
    """
    settled = {"mode": "plain", "arithmetic": arithmetic, "max_model_len": 256, "max_num_seqs": 96} | options
    if drafter is None:
        settled["draft_length"] = 0
    config = EngineConfig.build(environ={}, check_lengths=True, **settled)
    here = (
        nullcontext() if has_processes else patch("thalweg.engine.assembly.compiler_maker", lambda *_, **__: compiler)
    )
    with here:
        return build_engine(config, model=model(arithmetic), drafter=drafter)


def run(engine: LLMEngine, count: int) -> dict[str, RequestOutput]:
    """Step until so many requests have ended."""
    finals: dict[str, RequestOutput] = {}
    while len(finals) < count:
        finals |= {output.request_id: output for output in engine.step() if output.finished}
        assert engine.failure is None, engine.failure
    return finals


def serve(params: Sequence[SamplingParams], **options: Any) -> list[RequestOutput]:
    """Outputs of the prompt with these parameters, biased. options: of `engine`."""
    with engine(**options) as served:
        for number, param in enumerate(params):
            served.add_request(str(number), PROMPT, biased(param))
        finals = run(served, len(params))
    return [finals[str(number)] for number in range(len(params))]
