"""The corpus in every way of serving: temperatures, drafts, overlapping steps; over tables and by a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from drafts_testing.bench import EOS
from structured_testing import tabled, tiny
from structured_testing.cases import Case
from structured_testing.compiler import LocalCompiler
from structured_testing.drafter import GrammarDrafter, Known
from structured_testing.letters import ids
from structured_testing.verdicts import judge, share_finished
from thalweg.interfaces import RequestOutput, SamplingParams

TEMPERATURES = (0.0, 1.0, 2.0)
PROMPT = ids("say")
LENGTH = 150


@dataclass(frozen=True, slots=True)
class Way:
    """How requests are served."""

    verification: Literal["rejection", "coupled"]
    has_drafts: bool = False
    is_async: bool = False

    def keeps(self, params: SamplingParams) -> bool:
        """Whether drafts change nothing that such a request says."""
        return not self.has_drafts or params.is_greedy or self.verification == "coupled"


WAYS = {
    "in place": Way("rejection"),
    "overlapping": Way("coupled", is_async=True),
    "in place with drafts": Way("rejection", has_drafts=True),
    "overlapping with drafts": Way("coupled", has_drafts=True, is_async=True),
}


def params_of(cases: Sequence[Case], max_tokens: int) -> list[SamplingParams]:
    """One request for every temperature and case."""
    return [
        SamplingParams(max_tokens=max_tokens, temperature=heat, seed=number, structured=case.spec)
        for heat in TEMPERATURES
        for number, case in enumerate(cases)
    ]


def check_tables(cases: tuple[Case, ...], way: Way, seed: int = 0) -> float:
    """Serve the cases over tables and judge every output; what drafts cannot change is as without them.

    The share of outputs that ended by themselves.
    """
    requests = [(PROMPT, params) for params in params_of(cases, LENGTH)]
    plain = _plain_tables(cases, way.verification, seed)
    drafter = tabled.drafter_of(requests, plain, seed=seed) if way.has_drafts else None
    used = tabled.setup(seed, verification=way.verification, is_async=way.is_async)
    run = tabled.serve(used, requests, drafter)
    assert (tabled.num_held(run) > 0) == way.has_drafts
    return _judged(cases, way, [params for _, params in requests], run.finals, plain, tabled.shared_compiler(), EOS)


def check_tiny(cases: tuple[Case, ...], way: Way, arithmetic: str, max_tokens: int = tiny.LENGTH) -> float:
    """The same by the trained model. Its texts are compared where the arithmetic is the same in every batch."""
    params = params_of(cases, max_tokens)
    plain = _plain_tiny(cases, way.verification, arithmetic, max_tokens)
    drafter = None
    if way.has_drafts:
        compiler, length = tiny.compiler(), len(plain[0].prompt_token_ids)
        texts = {
            number: Known(length, output.outputs[0].token_ids, compiler.matcher(asked.structured))
            for number, (asked, output) in enumerate(zip(params, plain, strict=True))
            if asked.structured is not None
        }
        drafter = GrammarDrafter(tiny.DRAFTS, tiny.facts().vocab_size, texts)
    outputs = tiny.serve(
        params,
        arithmetic=arithmetic,
        drafter=drafter,
        verification=way.verification,
        async_scheduling=way.is_async,
    )
    if arithmetic != "exact":
        plain = outputs
    return _judged(cases, way, params, outputs, plain, tiny.compiler(), tiny.facts().eos_token_id)


def _judged(
    cases: tuple[Case, ...],
    way: Way,
    params: Sequence[SamplingParams],
    outputs: Sequence[RequestOutput],
    plain: Sequence[RequestOutput],
    compiler: LocalCompiler,
    end_token_id: int,
) -> float:
    said = [output.outputs[0] for output in outputs]
    for case, asked, output, before in zip(cases * len(TEMPERATURES), params, said, plain, strict=True):
        judge(case, output, compiler.matcher(case.spec), end_token_id)
        assert not way.keeps(asked) or output == before.outputs[0], case.name
    return share_finished(said)


@cache
def _plain_tables(
    cases: tuple[Case, ...], verification: Literal["rejection", "coupled"], seed: int
) -> list[RequestOutput]:
    """Without drafts, in place."""
    requests = [(PROMPT, params) for params in params_of(cases, LENGTH)]
    return tabled.serve(tabled.setup(seed, verification=verification), requests).finals


@cache
def _plain_tiny(cases: tuple[Case, ...], verification: str, arithmetic: str, max_tokens: int) -> list[RequestOutput]:
    params = params_of(cases, max_tokens)
    return tiny.serve(params, arithmetic=arithmetic, verification=verification, async_scheduling=False)
