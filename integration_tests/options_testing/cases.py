"""How an option is tested: requests on which it shows, what it promises, and the requests without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from drafts_testing.bench import EOS, Request, Setup, make_tokenizer
from drafts_testing.tables import Memory, Tables
from options_testing.modes import plain
from options_testing.runs import Run, Said
from structured_testing.compiler import LocalCompiler
from thalweg.interfaces import SamplingParams
from thalweg.structured import Vocabulary

VOCAB = 24
TARGET = Tables.random(VOCAB, seed=5, memory=Memory.EVERYTHING, spread=2.0)
NUM_SPACED = 4
TOKENIZER = make_tokenizer(VOCAB, NUM_SPACED)
COMPILER = LocalCompiler(Vocabulary.from_tokenizer(TOKENIZER.library_tokenizer, vocab_size=VOCAB, end_token_id=EOS))
SETUP = Setup(
    target=TARGET,
    drafts=TARGET.with_noise(6, 0.5),
    verification="coupled",
    num_spaced=NUM_SPACED,
    compiler=COMPILER,
)
"""A token is a function of seed, index and distribution, so every way of serving must say the same."""
PROMPT_LENGTHS = (30, 3, 26, 17, 29, 9)
LONG = SamplingParams(max_tokens=24, ignore_eos=True, seed=2**63)
"""Without any option: a long text that nothing but its length ends."""

Apply = Callable[[int, SamplingParams, Said], SamplingParams]
"""The parameters of a request, by number, with the option; what was said without it tells where it will show."""


def always(**values: Any) -> Apply:
    """The same values for every request."""
    return lambda number, params, said: replace(params, **values)


def varied(**values: Sequence[Any]) -> Apply:
    """Each value for some requests, in turn."""

    def apply(number: int, params: SamplingParams, said: Said) -> SamplingParams:
        return replace(params, **{name: choices[number % len(choices)] for name, choices in values.items()})

    return apply


AS_IT_IS = always()


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option that is set in some way.

    Every one of the requests has it. Those at temperature 0 among them are the last ones.
    """

    apply: Apply = AS_IT_IS
    """To every request; for an option of the engine nothing."""
    base: SamplingParams = LONG
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Setup` with the option."""
    engine_without: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Setup` without it."""
    promise: Callable[[Run, Run], None] | None = None
    """Asserts of a run with the option, knowing the plain one without it, that the option did what it says."""
    num_greedy: int = 1
    """Requests at temperature 0."""
    min_changed: int = 4
    """How many requests say something else than without the option."""

    @property
    def setup(self) -> Setup:
        return replace(SETUP, **self.engine)

    def without(self) -> Run:
        """The plain run without the option."""
        if not self.engine_without:
            return without_options(self.base, self.num_greedy)
        return Run(plain(replace(SETUP, **self.engine_without)), requests(self.base, self.num_greedy))

    def requests(self, without: Run) -> list[Request]:
        """With the option."""
        asked = enumerate(zip(without.requests, without.said, strict=True))
        return [(prompt, self.apply(number, params, said)) for number, ((prompt, params), said) in asked]


@cache
def without_options(base: SamplingParams, num_greedy: int) -> Run:
    """The plain run that most options are compared with."""
    return Run(plain(SETUP), requests(base, num_greedy))


def requests(base: SamplingParams, num_greedy: int) -> list[Request]:
    """Some requests, the last ones at temperature 0; a seed is that of the first one."""
    made: list[Request] = []
    seeds = {} if base.seed is None else {number: base.seed + number for number in range(len(PROMPT_LENGTHS))}
    for number, length in enumerate(PROMPT_LENGTHS):
        prompt = [(7 * number + 5 * place + place * place) % VOCAB for place in range(length)]
        is_greedy = number >= len(PROMPT_LENGTHS) - num_greedy
        temperature = 0.0 if is_greedy else base.temperature
        made.append((prompt, replace(base, temperature=temperature, seed=seeds.get(number))))
    return made
