"""Random walks of a matcher and its slow twin."""

from __future__ import annotations

import random
from typing import Any

from matcher_testing.masks import allowed
from matcher_testing.replay import ReplayMatcher
from matcher_testing.vocabularies import golden_info, golden_vocabulary

from thalweg.interfaces import GrammarSpec
from thalweg.structured import GrammarMatcher, compile_grammar

SPECS = [
    GrammarSpec.regex("[A-C]{2}-[0-9]{1,3}"),
    GrammarSpec.regex("(yes|no)*"),
    GrammarSpec.ebnf('root ::= "answer=" ("yes" | "no") (";level=" [1-3])*'),
    GrammarSpec.json({"type": "object", "properties": {"name": {"type": "string"}, "value": {"type": "integer"}}}),
    GrammarSpec.choice(["ab", "abAB", "null"]),
]
TRIGGERS: list[tuple[tuple[int, ...], int | None]] = [
    ((), None),
    ((4,), None),
    ((4,), 4),
    ((20, 20, 21, 20, 20, 21), None),
    ((40, 41), 3),
    ((40, 41), 41),
    ((5, 5, 6), 5),
    ((1, 4), 1),
]
"""With repeats, with a bound in the trigger, with the end token in it."""


def make_twins(rng: random.Random) -> tuple[GrammarMatcher, ReplayMatcher]:
    vocabulary = golden_vocabulary()
    compiled = compile_grammar(rng.choice(SPECS), golden_info())
    trigger, bound = rng.choice(TRIGGERS)
    twin = ReplayMatcher(
        compiled, trigger, bound, vocab_size=vocabulary.vocab_size, end_token_id=vocabulary.end_token_id
    )
    return GrammarMatcher(compiled, trigger, bound), twin


def state_of(matcher: GrammarMatcher | ReplayMatcher) -> tuple[Any, ...]:
    return (
        matcher.is_constrained,
        matcher.is_finished,
        matcher.trigger_progress,
        matcher.tokens_after_bound,
        matcher.tokens_after_end,
        allowed(matcher, golden_vocabulary().vocab_size),
    )


def some_token(rng: random.Random, twin: ReplayMatcher) -> int:
    """Mostly one that leads on: allowed by the grammar, of the trigger, the bound; sometimes any, or none at all."""
    choices = [rng.choice(allowed(twin, twin.vocab_size)), rng.randrange(-1, twin.vocab_size + 1)]
    if twin.is_pending:
        choices += [twin.trigger[twin.trigger_progress]] * 3 + [twin.trigger[0]]
        choices += [twin.bound] if twin.bound is not None and rng.random() < 0.5 else []
    else:
        choices += [rng.choice(allowed(twin, twin.vocab_size))] * 4
        if twin.end_token_id in allowed(twin, twin.vocab_size) and rng.random() < 0.3:
            return twin.end_token_id
    return rng.choice(choices)


def walk_and_go_back(seed: int, num_moves: int = 30) -> int:
    """Move both, compare them after each move; how many times tokens were taken back."""
    rng = random.Random(seed)
    matcher, twin = make_twins(rng)
    num_back = 0
    for _ in range(num_moves):
        if twin.tokens and rng.random() < 0.3:
            num_tokens = rng.randint(0, min(len(twin.tokens), 8))
            matcher.rollback(num_tokens)
            twin.rollback(num_tokens)
            num_back += 1
        else:
            token_id = some_token(rng, twin)
            assert matcher.accept(token_id) == twin.accept(token_id), (seed, twin.tokens, token_id)
        assert state_of(matcher) == state_of(twin), (seed, twin.tokens)
    return num_back
