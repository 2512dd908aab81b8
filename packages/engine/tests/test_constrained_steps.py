"""Whole engines whose outputs follow grammars: every way in which a step can meet its masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_testing.bench import EOS, Bench, MakeBench, params
from engine_testing.matchers import FunctionMatcher, Grammar, PlainFiller
from engine_testing.scripted import LETTERS

from thalweg.engine.constraint import Constraint
from thalweg.engine.inflight import Collected, InflightStep
from thalweg.engine.runner import StreamRunner
from thalweg.engine.sampling_row import SequenceToSample
from thalweg.engine.timeline import Timeline
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import InvariantError, StepCorrection
from thalweg.kernels.backends.cpu import CpuBackend

DRAFTS, SEQUENCES = 3, 4
CURVE = tuple((size, 10.0 + 2.0 * size) for size in range(1, SEQUENCES * (1 + DRAFTS) + 1))
WAYS = [
    pytest.param({}, id="no drafts"),
    pytest.param({"draft_length": DRAFTS, "verification": "rejection"}, id="rejection"),
    pytest.param({"draft_length": DRAFTS, "verification": "coupled"}, id="coupled"),
    pytest.param({"draft_length": DRAFTS, "step_times": CURVE}, id="redistributed"),
]


class Constrained:
    """Gives outputs of a bench grammars, by the seed of their rows, and keeps what the steps brought."""

    def __init__(self, bench: Bench, grammar_of: Callable[[int], Grammar | None], eos: int = EOS) -> None:
        self.bench = bench
        self._grammar_of = grammar_of
        self._eos = eos
        self.constraints: dict[int, Constraint] = {}
        self.collected: list[Collected] = []
        self._sample, self._collect = bench.runner.sample, bench.runner.collect
        bench.runner.sample = self.sample  # type: ignore[method-assign]
        bench.runner.collect = self.collect  # type: ignore[method-assign]

    def sample(self, step: InflightStep, correction: StepCorrection | None, rows: Sequence[SequenceToSample]) -> None:
        self._sample(step, correction, [self._with_constraint(row) for row in rows])

    def collect(self, step: InflightStep) -> Collected:
        collected = self._collect(step)
        if step.plan.sequence_ids.size:
            self.collected.append(collected)
        return collected

    def _with_constraint(self, row: SequenceToSample) -> SequenceToSample:
        grammar = self._grammar_of(row.row.seed) if row.key >= 0 else None
        if grammar is None:
            return row
        if row.key not in self.constraints:
            self.constraints[row.key] = Constraint(FunctionMatcher(grammar, self._eos))
        return replace(row, constraint=self.constraints[row.key])


def grammars(letters: list[int]) -> dict[int, Grammar]:
    """By seed: the letters that may follow. Seed 2 is free until it has said "d", and may end after "x"."""

    def every_other(tokens: tuple[int, ...]) -> list[int]:
        return letters[len(tokens) % 2 :: 2]

    def vowels(tokens: tuple[int, ...]) -> list[int]:
        return [letters[LETTERS.index(letter)] for letter in ("aeiou" if len(tokens) % 3 else "bdx")]

    def after_d(tokens: tuple[int, ...]) -> list[int] | None:
        if letters[3] not in tokens:
            return None
        return [letters[LETTERS.index(letter)] for letter in "hmx"] + [EOS] * (tokens[-1] == letters[23])

    return {0: every_other, 1: vowels, 2: after_d}


def serve(bench: Bench, temperature: float = 0.0, max_tokens: int = 20) -> dict[str, list[int]]:
    """Tokens of four requests, the last of them free."""
    Constrained(bench, grammars(bench.letters).get)
    if bench.drafter is not None:
        bench.drafter.is_wrong = lambda sequence, position: (3 * sequence + position) % 5 == 0
    for seed in range(SEQUENCES):
        options = params(max_tokens=max_tokens, temperature=temperature, seed=seed)
        bench.engine.add_request(str(seed), "z" * (1 + seed), options)
    finals = bench.drain()
    assert all(final.error is None for final in finals.values())
    return {name: list(final.outputs[0].token_ids) for name, final in finals.items()}


def expected(bench: Bench, seed: int, max_tokens: int = 20) -> list[int]:
    """Greedy tokens of one request, worked out without an engine."""
    matcher = FunctionMatcher(grammars(bench.letters).get(seed, lambda tokens: None), EOS)
    last = bench.letters[-1]
    for _ in range(max_tokens):
        logits = bench.model.logits(torch.tensor([last]))
        if matcher.is_constrained:
            mask = np.zeros((1, logits.shape[1] // 32), np.int32)
            matcher.fill_bitmask(mask, 0)
            logits[0, np.unpackbits(mask.view(np.uint8), bitorder="little") == 0] = -torch.inf
        last = int(logits.argmax())
        assert matcher.accept(last)
        if last == EOS:
            break
    return matcher.token_ids


@pytest.mark.parametrize("options", WAYS)
def test_greedy_outputs_follow_their_grammars_and_neighbours_are_as_ever(
    make_bench: MakeBench, options: dict[str, object]
) -> None:
    bench = make_bench(filler=PlainFiller(), **options)
    tokens = serve(bench)
    assert tokens == {str(seed): expected(bench, seed) for seed in range(SEQUENCES)}
    assert tokens["3"] == bench.letters[:20]


@pytest.mark.parametrize("options", WAYS[:2])
def test_outputs_follow_their_grammars_across_preemptions(make_bench: MakeBench, options: dict[str, object]) -> None:
    bench = make_bench(filler=PlainFiller(), num_blocks=9, **options)
    tokens = serve(bench)
    assert sum(final.metrics.num_preemptions for final in bench.finals.values())
    assert tokens == {str(seed): expected(bench, seed) for seed in range(SEQUENCES)}


@pytest.mark.parametrize("options", WAYS)
def test_sampled_outputs_are_what_a_fresh_matcher_accepts(tokenizer: Tokenizer, options: dict[str, object]) -> None:
    """Coupled draws are the same without drafts, and in either mode."""
    found = []
    for is_async in (False, True):
        bench = Bench(tokenizer, async_scheduling=is_async, filler=PlainFiller(), **options)  # type: ignore[arg-type]
        found.append(serve(bench, temperature=5.0))
        for seed, grammar in grammars(bench.letters).items():
            matcher = FunctionMatcher(grammar, EOS)
            assert all(matcher.accept(token_id) for token_id in found[-1][str(seed)])
    if options.get("verification") != "rejection":
        assert found[0] == found[1] == serve(Bench(tokenizer, filler=PlainFiller()), temperature=5.0)


@pytest.mark.parametrize("options", WAYS)
def test_an_output_that_left_its_grammar_ends_and_neighbours_are_as_ever(
    make_bench: MakeBench, options: dict[str, object]
) -> None:
    """Its grammar changes its mind, and no longer allows what it did."""
    bench = make_bench(filler=PlainFiller(), **options)
    known, is_strict = grammars(bench.letters), False
    constrained = Constrained(bench, (known | {0: lambda tokens: [] if is_strict else known[0](tokens)}).get)
    for seed in range(SEQUENCES):
        bench.engine.add_request(str(seed), "z" * (1 + seed), params(max_tokens=20, seed=seed))
    while len(constrained.constraints) < 3 or constrained.constraints[0].num_seen < 5:
        bench.step()
    is_strict = True
    finals = bench.drain()
    assert finals["0"].outputs[0].finish_reason == "structured_output_failed"
    assert finals["0"].outputs[0].token_ids == tuple(expected(bench, 0))[: len(finals["0"].outputs[0].token_ids)]
    for seed in range(1, SEQUENCES):
        assert list(finals[str(seed)].outputs[0].token_ids) == expected(bench, seed)
    (failed,) = [each for each in constrained.collected if each.grammar_failures]
    ((row, message),) = failed.grammar_failures.items()
    assert "not allowed by the grammar" in message
    status = failed.result.row_status
    assert status is not None
    assert status.dtype == np.int8
    assert status.tolist() == [-1 if place == row else 0 for place in range(status.size)]
    assert all(each.result.row_status is None for each in constrained.collected if each is not failed)


@pytest.mark.parametrize("options", WAYS)
def test_a_starved_output_is_reported_with_the_tokens_before_it(
    make_bench: MakeBench, options: dict[str, object]
) -> None:
    bench = make_bench(filler=PlainFiller(), **options)

    def abc_and_no_more(tokens: tuple[int, ...]) -> list[int]:
        return bench.letters[len(tokens) : len(tokens) + 1] if len(tokens) < 3 else []

    constrained = Constrained(bench, {0: abc_and_no_more}.get)
    for seed in range(2):
        bench.engine.add_request(str(seed), "z", params(max_tokens=9, seed=seed))
    finals = bench.drain()
    assert finals["0"].outputs[0].token_ids == tuple(bench.letters[:3])
    assert finals["0"].error is not None
    assert finals["1"].outputs[0].token_ids == tuple(bench.letters[:9])
    starved = [each for each in constrained.collected if each.starved_rows is not None and each.starved_rows.any()]
    assert len(starved) == 1
    assert starved[0].starved_rows is not None
    assert starved[0].starved_rows.tolist() == starved[0].broken_rows.tolist()
    assert starved[0].starved_rows.sum() == 1


@pytest.mark.parametrize("options", WAYS)
def test_a_forced_token_that_the_grammar_forbids_ends_its_output_before_it(
    make_bench: MakeBench, options: dict[str, object]
) -> None:
    bench = make_bench(filler=PlainFiller(), **options)
    Constrained(bench, grammars(bench.letters).get)
    a, b, c, d = bench.letters[:4]
    for name, forced in ("allowed", [-1, d, c]), ("forbidden", [-1, d, b]):
        bench.engine.add_request(name, "z", params(max_tokens=5, seed=0, forced_token_ids=forced))
    finals = bench.drain()
    assert finals["allowed"].outputs[0].token_ids[:4] == (a, d, c, d)
    assert finals["allowed"].error is None
    assert finals["forbidden"].outputs[0].token_ids == (a, d)
    assert finals["forbidden"].error is not None


def test_masks_are_timed_and_shown_on_the_timeline(tokenizer: Tokenizer) -> None:
    timeline = Timeline()
    bench = Bench(tokenizer, filler=PlainFiller(), timeline=timeline)
    constrained = Constrained(bench, grammars(bench.letters).get)
    bench.engine.add_request("0", "z", params(max_tokens=3, seed=0))
    bench.drain()
    bench.engine.add_request("free", "z", params(max_tokens=3, seed=3))
    bench.drain()
    spans = {name: [s for s in timeline.spans if (s.track, s.name) == ("host", name)] for name in ("masks", "sample")}
    assert [span.arguments for span in spans["masks"]] == [{"step": step} for step in range(3)]
    for inner, outer in zip(spans["masks"], spans["sample"], strict=False):
        assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns
    assert [each.mask_s > 0 for each in constrained.collected] == [True] * 3 + [False] * 3
    assert [each.starved_rows is None for each in constrained.collected] == [False] * 3 + [True] * 3


def test_grammars_without_a_filler_end_the_engine_with_an_error(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    Constrained(bench, grammars(bench.letters).get)
    bench.engine.add_request("0", "z", params(max_tokens=3, seed=0))
    bench.step()
    assert "nothing that fills masks was given" in str(bench.engine.failure)
    with pytest.raises(InvariantError, match="vocab_size is 0"):
        StreamRunner(CpuBackend(), bench.runner.device, bench.runner._inputs, filler=PlainFiller())
